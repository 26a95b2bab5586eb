"""A unit and the depthwise unit after it: where there are kernels for both, what lies between is never written."""

from torch import Tensor, is_grad_enabled, rsqrt

from hcfl.models import kernels
from hcfl.models.layers import MOMENTUM, BatchNorm, Unit


def in_turn(first: Unit, second: Unit, x: Tensor) -> Tensor:
    """Run a unit and then a depthwise one, (N, H, W, C) → (N, H′, W′, C′)."""
    y: Tensor
    ceiling = kernels.CEILINGS.get(first.activation)
    if ceiling is None or not isinstance(first.norm, BatchNorm) or not second.conv.has_depthwise_kernel:
        y = second(first(x))
    elif first.norm.has_kernel(x):
        y = _trained(first.norm, ceiling, second, first.conv(x))
    elif _only_evaluated(first, second) and kernels.usable(x):
        y = _evaluated(first.norm, ceiling, second, first.conv(x))
    else:
        y = second(first(x))
    return y


def _trained(norm: BatchNorm, ceiling: float, second: Unit, x: Tensor) -> Tensor:
    """Many clients' images, by the statistics of their batches."""
    from hcfl.models.kernels.depthwise import Placement  # needs Triton
    from hcfl.models.kernels.normalise import Form
    from hcfl.models.kernels.normalised_depthwise import normalised_depthwise

    rows, columns = second.conv.windows(x)
    kernel, place = second.conv.weight[:, :, rows.taps, columns.taps], Placement.of(second.conv.stride, rows, columns)
    y = normalised_depthwise(x, *norm.of_kernels(), Form(norm.eps, MOMENTUM, ceiling), kernel, place)
    if isinstance(second.norm, BatchNorm):
        return second.norm.activated(y, second.activation)
    y = second.norm(y)
    return y if second.activation is None else second.activation(y)


def _only_evaluated(first: Unit, second: Unit) -> bool:
    """Whether nothing is trained, and both go by running statistics, so that one model's kernel does all."""
    norms = [unit.norm for unit in (first, second) if isinstance(unit.norm, BatchNorm) and not unit.norm.training]
    return (
        len(norms) == 2
        and kernels.CEILINGS.get(second.activation) is not None
        and not second.conv.written_out
        and not is_grad_enabled()
    )


def _evaluated(norm: BatchNorm, ceiling: float, second: Unit, x: Tensor) -> Tensor:
    """One model's images, by running statistics."""
    from hcfl.models.kernels.depthwise import Entry, Placement, convolve  # needs Triton

    assert isinstance(second.norm, BatchNorm)
    rows, columns = second.conv.windows(x)
    scale, shift = second.norm.fixed()
    kernel = (second.conv.weight * scale.view(-1, 1, 1, 1))[:, :, rows.taps, columns.taps]
    entry = Entry(norm.running_mean, rsqrt(norm.running_var + norm.eps), norm.weight, norm.bias, ceiling)
    place = Placement.of(second.conv.stride, rows, columns)
    return convolve(x, kernel, place, entry, shift, kernels.CEILINGS[second.activation])
