"""Layers that draw numbers from torch's own generator in training, so that clients must train one after another."""

import warnings
from functools import lru_cache
from itertools import chain

import torch
from torch import Tensor, nn

from hcfl.models import Network, parameters_of
from hcfl.models.ensemble import stack
from hcfl.models.inputs import Inputs


@lru_cache(maxsize=4)
def drawing_layers(
    network: Network,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> tuple[str, ...]:
    """Return the names of layers that draw, found by a pass of two inputs of this shape.

    Where a layer has layers of its own, it is named only if none of these draws. Dropout layers do not draw: hcfl
    computes their masks.
    """
    found: list[str] = []
    parts = chain(network.extractor.named_modules(prefix="extractor"), network.head.named_modules(prefix="head"))
    hooks = [hook for name, layer in parts for hook in _watch(name, layer, found)]
    try:
        # The generators are what they were before.
        with torch.random.fork_rng(), torch.no_grad():
            inputs = torch.zeros(2, *shape, dtype=dtype, device=device)
            extractor = network.trained_part(network.extractor)
            features = network.embed(extractor, inputs, training=True)
            network.logits(stack([parameters_of(network.head)]), features, training=True)
    except Exception:  # of a user's own code: it is raised again, and told, in training
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found)


def _watch(
    name: str, layer: nn.Module, found: list[str]
) -> tuple[torch.utils.hooks.RemovableHandle, torch.utils.hooks.RemovableHandle]:
    """Note the name of a layer whose pass changes the generators' states, unless one inside of it is noted."""
    begun: list[tuple[list[Tensor], int]] = []

    def before(*_: object) -> None:
        begun.append((_states(), len(found)))

    def after(*_: object) -> None:
        states, known = begun.pop()
        drew = not all(torch.equal(one, two) for one, two in zip(states, _states(), strict=True))
        if drew and len(found) == known and name not in found:
            found.append(f"{name} ({type(layer).__name__})")

    return layer.register_forward_pre_hook(before), layer.register_forward_hook(after)


def _states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def one_by_one(network: Network, inputs: Inputs) -> bool:
    """Whether clients train one after another, since layers draw; the user is told, once."""
    example = inputs[:1]
    layers = drawing_layers(network, tuple(example.shape[1:]), example.dtype, example.device)
    if layers:
        _tell(layers)
    return bool(layers)


@lru_cache(maxsize=4)
def _tell(layers: tuple[str, ...]) -> None:
    several = "layers" if len(layers) > 1 else "layer"
    warnings.warn(
        f"the {several} {', '.join(layers)} of the model draw{'' if len(layers) > 1 else 's'} random numbers in "
        "training, so clients train one after another, slower; dropout as layers of their own (torch.nn.Dropout) "
        "does not slow training down",
        stacklevel=4,
    )
