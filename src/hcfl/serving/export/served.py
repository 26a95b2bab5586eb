"""The models of a client or of a cluster as one plain torch module."""

from copy import deepcopy
from math import log, pi

import torch
from torch import Tensor, nn

from hcfl.core.predictions import Predictions
from hcfl.core.state import PersonalPart
from hcfl.data.tables import Schema
from hcfl.models import Network
from hcfl.models.ensemble import row
from hcfl.personal import making
from hcfl.serving.predict import Blend, Density


class Served(nn.Module):
    """Raw inputs (samples, …) → class probabilities (samples, classes): scaling, networks and mixture in one graph."""

    mean: Tensor
    std: Tensor
    weights: Tensor

    def __init__(self, network: Network, blend: Blend, schema: Schema | None = None) -> None:
        super().__init__()
        self.schema, self.task = schema, network.task
        models = blend.models
        extractors = 1 if models.topology == "split" else models.clusters
        self.extractors = nn.ModuleList(_filled(network.extractor, models.extractor(k)) for k in range(extractors))
        self.heads = nn.ModuleList(_filled(network.head, row(models.heads, k)) for k in range(models.clusters))
        for name, tensor in (("mean", blend.scaling.mean), ("std", blend.scaling.std), ("weights", blend.weights)):
            self.register_buffer(name, tensor.clone())
        self.density = None if blend.density is None else ModelDensity(network, blend.density)
        self.main, self.whole = blend.main, blend.scaling.whole
        self.personal = None if blend.personal is None else Personal(network, blend.personal)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Σ_k ω̃_k p_k(·|x), with p_k = softmax(head_k(φ_k(x))) of classes."""
        x = x.to(torch.int64) if self.whole else (x.to(torch.float32) - self.mean) / self.std
        features = [extractor(x) for extractor in self.extractors] * (len(self.heads) // len(self.extractors))
        each = [head(z) for head, z in zip(self.heads, features, strict=True)]
        distribution = self.task.distribution(torch.stack(each, dim=1))
        weights = self.weights.expand(x.shape[0], -1)
        if self.density is not None and len(each) > 1:
            weights = torch.softmax(self.weights.log() + self.density(x), dim=1)
        mixed = self.task.mix(distribution, weights)
        if self.personal is not None:
            mixed = self.personal(x, features[self.main], mixed)
        return self.task.shown(mixed)


class Personal(nn.Module):
    """Scaled inputs, features and the group's prediction → the client's: `personal.making.predict` as a module."""

    weights: Tensor
    bias: Tensor | None
    weight: Tensor | None

    def __init__(self, network: Network, part: PersonalPart) -> None:
        super().__init__()
        self.task, self.kind, self.variance = network.task, part.kind, part.variance
        self.models = nn.ModuleList()
        if part.own is not None:
            for number in range(part.own.clusters):
                extractor = _filled(network.extractor, part.own.extractor(number))
                self.models.append(nn.Sequential(extractor, _filled(network.head, row(part.own.heads, number))))
        self.register_buffer("weights", part.weights.clone())
        for name, tensor in (("bias", part.bias), ("weight", part.weight)):
            self.register_buffer(name, None if tensor is None else tensor.clone())

    def forward(self, x: Tensor, features: Tensor, mixed: Tensor) -> Tensor:
        """Σ_m w_m·p_m, in the form of the task."""
        part = PersonalPart(self.kind, self.weights, self.bias, self.weight, variance=self.variance)
        outputs = torch.stack([model(x) for model in self.models], dim=1) if len(self.models) else None
        return making.predicted(self.task, part, Predictions(mixed, features), outputs)


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
