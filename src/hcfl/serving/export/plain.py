"""Models without frozen parts and adapters: every weight in its place, as other programs know the network."""

from copy import deepcopy
from dataclasses import replace

from torch import nn

from hcfl.models import Network, Params, parameters_of
from hcfl.models.ensemble import Ensemble, stack
from hcfl.models.trained_part import merge_adapters
from hcfl.serving.predict import Blend


def plain(network: Network, blend: Blend) -> tuple[Network, Blend]:
    """Return the plain network, and all models of a blend for it: the frozen part filled in, adapters merged."""
    if not network.frozen:
        return network, blend
    density, personal = blend.density, blend.personal
    return replace(network, extractor=merge_adapters(deepcopy(network.extractor)).requires_grad_()), replace(
        blend,
        models=_whole(network, blend.models),
        density=density and replace(density, anchor=_whole(network, density.anchor)),
        personal=personal and replace(personal, own=personal.own and _whole(network, personal.own)),
    )


def _whole(network: Network, models: Ensemble) -> Ensemble:
    extractors = 1 if models.topology == "split" or network.fixed else models.clusters
    whole = stack([_merged(network.extractor, models.extractor(k)) for k in range(extractors)])
    return Ensemble(whole, models.heads, "split" if extractors == 1 else models.topology)


def _merged(template: nn.Module, trained: Params) -> Params:
    extractor = deepcopy(template)
    extractor.load_state_dict(trained, strict=False)
    return parameters_of(merge_adapters(extractor))
