"""The models of a client or of a cluster as one plain torch module."""

from copy import deepcopy
from math import log, pi

import torch
from torch import Tensor, nn

from hcfl.data.tables import Schema
from hcfl.models import Network
from hcfl.models.ensemble import row
from hcfl.serving.predict import Blend, Density


class Served(nn.Module):
    """Raw inputs (samples, …) → class probabilities (samples, classes): scaling, networks and mixture in one graph."""

    mean: Tensor
    std: Tensor
    weights: Tensor

    def __init__(self, network: Network, blend: Blend, schema: Schema | None = None) -> None:
        super().__init__()
        self.schema = schema
        models = blend.models
        extractors = 1 if models.topology == "split" else models.clusters
        self.extractors = nn.ModuleList(_filled(network.extractor, models.extractor(k)) for k in range(extractors))
        self.heads = nn.ModuleList(_filled(network.head, row(models.heads, k)) for k in range(models.clusters))
        for name, tensor in (("mean", blend.scaling.mean), ("std", blend.scaling.std), ("weights", blend.weights)):
            self.register_buffer(name, tensor.clone())
        self.density = None if blend.density is None else ModelDensity(network, blend.density)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Σ_k ω̃_k softmax(head_k(φ_k(x)))."""
        x = (x.to(torch.float32) - self.mean) / self.std
        features = [extractor(x) for extractor in self.extractors] * (len(self.heads) // len(self.extractors))
        each = [torch.softmax(head(z), dim=1) for head, z in zip(self.heads, features, strict=True)]
        if len(each) == 1:
            return each[0]
        weights = self.weights if self.density is None else torch.softmax(self.weights.log() + self.density(x), dim=1)
        return (weights.unsqueeze(-1) * torch.stack(each, dim=1)).sum(dim=1)


class ModelDensity(nn.Module):
    """Scaled inputs → log p_k(z), (samples, models): the Gaussians of the embedded inputs, as each model mixes them."""

    origin: Tensor
    axes: Tensor
    means: Tensor
    variances: Tensor
    components: Tensor

    def __init__(self, network: Network, density: Density) -> None:
        super().__init__()
        self.extractor = _filled(network.extractor, density.anchor.extractor(0))
        for name in ("origin", "axes", "means", "variances"):
            self.register_buffer(name, getattr(density.gaussians, name).clone())
        self.register_buffer("components", density.components.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Log Σ_a ρ_ka·N(z; m_a, S_a)."""
        z = (self.extractor(x) - self.origin) @ self.axes
        squares = (z.unsqueeze(1) - self.means) ** 2 / self.variances
        log_densities = -0.5 * (squares + self.variances.log() + log(2 * pi)).sum(dim=2)
        return torch.logsumexp(self.components.log() + log_densities.unsqueeze(1), dim=2)


def _filled(template: nn.Module, params: dict[str, Tensor]) -> nn.Module:
    """Copy a module and give it its weights."""
    module = deepcopy(template)
    module.load_state_dict(params)
    return module.requires_grad_(False)
