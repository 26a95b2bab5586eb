"""The metrics that people expect of each task, over a client's held-out data and over all of them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl.core.held_out import HeldOut
from hcfl.data import Federation
from hcfl.models.tasks import AnyTask, MultiLabel, Regression

Scores = dict[str, float | None]
"""Metrics by name; None where one is not defined, such as AUROC over a single class."""

CALIBRATION_BINS = 10

METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "balanced_accuracy", "f1", "auroc", "average_precision", "calibration_error"),
    "regression": ("rmse", "mae", "r2"),
    "multi-label": ("accuracy", "f1", "auroc", "average_precision", "calibration_error"),
}
"""The metrics of each task. F1, AUROC and average precision are means over classes, or labels; of two classes they are
those of the second one."""


def client_scores(
    federation: Federation, held_out: HeldOut | None, personal: Tensor | None = None
) -> list[Scores] | None:
    """Return the metrics over all held-out data, then over each client's; None where clients measure themselves.

    Where clients have personal parts, `personal` is what they predict with them, and each metric is there twice.
    """
    if held_out is None or held_out.mixed is None:
        return None
    groups = _each(federation, held_out.mixed)
    if personal is None:
        return groups
    named = [{f"personal_{name}": value for name, value in one.items()} for one in _each(federation, personal)]
    return [{**one, **other} for one, other in zip(groups, named, strict=True)]


def _each(federation: Federation, mixed: Tensor) -> list[Scores]:
    predicted, answers = federation.task.shown(mixed), federation.answers[federation.val_rows]
    unknown: Scores = dict.fromkeys(METRICS[federation.task.name])
    each = [
        scores(federation.task, predicted[part], answers[part]) if part.stop > part.start else unknown
        for part in _slices(federation.val_segments.sizes)
    ]
    return [scores(federation.task, predicted, answers), *each]


def baselines(federation: Federation, season: int | None) -> dict[str, Scores]:
    """Return the metrics of forecasts without a model: the last value, and the value of a season before.

    They are over the same held-out windows; none where the task is no forecast.
    """
    windows = None if federation.schema is None else federation.schema.windows
    rows = federation.val_rows
    if windows is None or not len(rows) or not len(federation.y):
        return {}
    assert isinstance(federation.task, Regression)
    past = federation.x[rows.to(federation.x.device)][:, :, 0].cpu()  # the label's own channel, standardised as answers
    columns = {"last_value": windows.history - 1}
    if season is not None:
        columns["last_season"] = windows.span - season
    unit, answers = federation.task.std, federation.answers[rows]
    return {
        name: _of_numbers((past[:, column].double() - answers.double()) * unit, answers * unit)
        for name, column in columns.items()
    }


def _slices(sizes: tuple[int, ...]) -> list[slice]:
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def scores(task: AnyTask, predicted: Tensor, answers: Tensor) -> Scores:
    """Return the metrics of predictions as users read them, beside the answers that the likelihood is of."""
    names = METRICS[task.name]
    if not len(answers) or not torch.isfinite(predicted).all():  # a model that diverged predicts nothing
        return dict.fromkeys(names)
    if isinstance(task, Regression):
        return _of_numbers(predicted[:, 0].double() - (answers.double() * task.std + task.mean), answers * task.std)
    if isinstance(task, MultiLabel):
        return _of_labels(predicted.numpy(), answers.numpy() > 0.5)
    return _of_classes(predicted.numpy(), answers.numpy())


def _of_numbers(errors: Tensor, answers: Tensor) -> Scores:
    squares, around = float(errors.square().mean()), float(answers.double().var(correction=0))
    return {
        "rmse": squares**0.5,
        "mae": float(errors.abs().mean()),
        "r2": 1 - squares / around if around > 0 else None,
    }


def _of_classes(probabilities: NDArray[Any], labels: NDArray[Any]) -> Scores:
    classes = probabilities.shape[1]
    best, held = probabilities.argmax(axis=1), np.unique(labels)
    recalls = [float((best[labels == label] == label).mean()) for label in held]
    # Of two classes, the second is the one to find; of more, each in turn.
    sought = [1] if classes == 2 else held.tolist()
    each = [(best == label, probabilities[:, label], labels == label) for label in sought]
    confident = probabilities.max(axis=1)
    return {
        "accuracy": float((best == labels).mean()),
        "balanced_accuracy": float(np.mean(recalls)),
        **_ranked(each),
        "calibration_error": calibration_error(confident, best == labels),
    }


def _of_labels(probabilities: NDArray[Any], labels: NDArray[np.bool_]) -> Scores:
    chosen = probabilities > 0.5
    each = [(chosen[:, at], probabilities[:, at], labels[:, at]) for at in range(labels.shape[1])]
    return {
        "accuracy": float((chosen == labels).mean()),
        **_ranked(each),
        "calibration_error": calibration_error(probabilities.ravel(), labels.ravel()),
    }


def _ranked(each: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]) -> Scores:
    """Return F1, AUROC and average precision, each the mean over what is sought and has both kinds of samples."""
    both = [(chosen, scored, true) for chosen, scored, true in each if 0 < true.sum() < len(true)]

    def mean(of: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], Any]) -> float | None:
        return float(np.mean([of(*one) for one in both])) if both else None

    return {
        "f1": mean(lambda chosen, scored, true: 2 * (chosen & true).sum() / (chosen.sum() + true.sum())),
        "auroc": mean(lambda chosen, scored, true: auroc(scored, true)),
        "average_precision": mean(lambda chosen, scored, true: average_precision(scored, true)),
    }


def auroc(scored: NDArray[Any], true: NDArray[np.bool_]) -> float:
    """Return how often a true sample has a higher score than another, where ties count half.

    >>> auroc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True]))
    0.875
    """
    _, place, counts = np.unique(scored, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # from 1, the mean of equal ones
    positive = int(true.sum())
    return float((ranks[true].sum() - positive * (positive + 1) / 2) / (positive * (len(true) - positive)))


def average_precision(scored: NDArray[Any], true: NDArray[np.bool_]) -> float:
    """Return the mean of the precision at each threshold, by how much recall it adds.

    >>> average_precision(np.array([0.1, 0.4, 0.3, 0.8]), np.array([False, False, True, True]))
    0.8333333333333333
    """
    order = np.argsort(-scored, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scored[order])), len(order) - 1)  # of samples with the same score
    found = np.cumsum(true[order])[last]
    return float((np.diff(found, prepend=0) * found / (last + 1)).sum() / found[-1])


def calibration_error(probabilities: NDArray[Any], right: NDArray[Any]) -> float:
    """Return the mean difference between probability and frequency over ten bins of probability, by their samples.

    >>> round(calibration_error(np.array([0.8, 0.8, 0.8, 0.8]), np.array([1, 1, 0, 0])), 3)
    0.3
    """
    bins = np.minimum((probabilities * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    counts, sums = np.bincount(bins), np.bincount(bins, probabilities - np.asarray(right, dtype=float))
    return float(np.abs(sums).sum() / counts.sum())


def rows_of(names: tuple[Any, ...], sizes: tuple[int, ...], found: list[Scores]) -> list[list[Any]]:
    """Return `scores.csv`: a line for all clients together (its client is empty), then one for each."""
    header = ["client", "samples", *found[0]]
    lines = zip(("", *names), (sum(sizes), *sizes), found, strict=True)
    return [header, *([name, size, *map(_cell, scored.values())] for name, size, scored in lines)]


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def shown(found: Mapping[str, float | None]) -> str:
    """Return metrics in a line.

    >>> shown({"rmse": 1.25, "r2": None})
    'rmse 1.25, r2 –'
    """
    return ", ".join(f"{name} {'–' if value is None else f'{value:.3g}'}" for name, value in found.items())


def finite(found: Scores) -> Scores:
    """Return metrics as JSON can hold them."""
    return {name: None if value is None or not np.isfinite(value) else value for name, value in found.items()}
