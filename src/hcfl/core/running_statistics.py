"""Whether running statistics of batch normalisation can be what a client has seen."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from hcfl.core.refusal import Check, Refusal, impossible
from hcfl.core.setting import RoundTask
from hcfl.core.state import Update
from hcfl.models import Params

MEAN, VARIANCE, BATCHES = "running_mean", "running_var", "num_batches_tracked"
"""How the names of batch normalisation's buffers end."""

OTHER = "other buffers"

STATISTICS = {
    VARIANCE: "running variances whose roots are {}",
    MEAN: "running means that are {} as long as",
    OTHER: "buffers that are {} as long as",
}

SMALLEST = 1e-3
"""Statistics are never too long that are shorter."""

MOST_BATCHES = 2**40
"""No client trains on more batches."""


def checks(task: RoundTask, update: Update, finite: Tensor) -> Iterator[Check]:
    """Check running statistics: variances are not negative, and nothing is far longer than it usually is.

    Each kind is compared with the median of the round and with what was sent out, whichever is longer; variances by
    their roots. Means are compared with the roots of the variances, too: new models are sent out with means of 0.
    """
    names, longest = task.setting.network.buffers, task.setting.admission.longest_model
    sent, got = (_statistics(models.extractors, names) for models in (update.models, task.broadcast.ensemble))
    owners = torch.arange(len(update.clients)) if update.models.topology == "split" else update.row_participants

    def of_clients(rows: Tensor) -> Tensor:
        return torch.zeros(len(update.clients), dtype=torch.bool).index_fill(0, owners[rows], True)

    if VARIANCE in sent:
        yield of_clients((sent[VARIANCE] < 0).any(dim=1).cpu()), impossible("sent a running variance below 0")
    if BATCHES in sent:
        wrong = (sent[BATCHES] < 0) | (sent[BATCHES] > MOST_BATCHES)
        yield of_clients(wrong.any(dim=1).cpu()), impossible("sent a number of batches that cannot be")
    for kind in (VARIANCE, MEAN, OTHER):
        if kind in sent:
            ratio = _ratio(kind, sent, got, finite[owners])
            yield of_clients(ratio > longest), _long_statistics(kind, ratio, owners)


def _statistics(extractors: Params, names: frozenset[str]) -> dict[str, Tensor]:
    """Return the buffers of each kind, (models, numbers), where they lie: on a GPU, all are looked at there."""
    kinds: dict[str, list[Tensor]] = {}
    for name in sorted(names & extractors.keys()):
        kind = next((end for end in (MEAN, VARIANCE, BATCHES) if name.endswith(end)), OTHER)
        tensor = extractors[name]
        kinds.setdefault(kind, []).append(tensor.reshape(len(tensor), -1))
    return {kind: torch.cat(tensors, dim=1).double() for kind, tensors in kinds.items()}


def _ratio(kind: str, sent: Mapping[str, Tensor], got: Mapping[str, Tensor], finite: Tensor) -> Tensor:
    """Return how many times as long as usual one kind of statistics is, (models,), on the CPU."""

    def lengths(held: Mapping[str, Tensor], which: str) -> Tensor:
        squares = held[which].clamp_min(0) if which == VARIANCE else held[which].square()
        return squares.sum(dim=1).sqrt().cpu()

    mine = lengths(sent, kind)
    usual = [float(lengths(got, kind).max()), SMALLEST]
    usual += [float(mine[finite].median())] if finite.any() else []
    usual += [float(lengths(got, VARIANCE).max())] if kind == MEAN and VARIANCE in got else []
    return mine / max(usual)


def _long_statistics(kind: str, ratio: Tensor, owners: Tensor) -> Callable[[int], Refusal]:
    def refusal(at: int) -> Refusal:
        times = f"{float(ratio[owners == at].max()):.3g} times"
        return Refusal("too long", f"sent {STATISTICS[kind].format(times)} those of most others")

    return refusal
