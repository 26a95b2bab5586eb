"""How evenly a federation serves its clients: by each client's accuracy on its held-out data."""

from math import ceil

from torch import Tensor

from hcfl.core.state import ClientScores


def accuracies(right: Tensor, samples: Tensor) -> Tensor:
    """Return each client's accuracy, of the clients that hold out samples."""
    return (right / samples)[samples > 0]


def worst_tenth(each: Tensor) -> float:
    """Return the mean accuracy of the tenth of the clients that is served worst, at least of one.

    >>> worst_tenth(Tensor([0.5, 0.75, *[1.0] * 18]))
    0.625
    """
    return float(each.double().sort().values[: ceil(len(each) / 10)].mean())


def spread(each: Tensor) -> float:
    """Return the standard deviation of accuracies over clients."""
    return float(each.double().std(correction=0))


def fairness(scores: ClientScores | None) -> dict[str, float | None]:
    """Return Val with personal parts, and the worst tenth and the spread with and without them; None: not measured."""
    groups = personal = None
    if scores is not None and bool((scores.samples > 0).any()):
        groups = accuracies(scores.right, scores.samples)
        if scores.personal is not None:
            personal = accuracies(scores.personal, scores.samples)
    return {
        "val_personal_last": None if scores is None else scores.val_personal,
        "val_worst_tenth": None if groups is None else worst_tenth(groups),
        "val_personal_worst_tenth": None if personal is None else worst_tenth(personal),
        "val_spread": None if groups is None else spread(groups),
        "val_personal_spread": None if personal is None else spread(personal),
    }
