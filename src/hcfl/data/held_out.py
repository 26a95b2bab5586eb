"""Held-out samples: what a client keeps apart for Val, and what a newcomer is fitted and measured on."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl import rng
from hcfl.data.federation import Newcomer
from hcfl.data.samples import Rows, Samples

FIT_SHARE = 0.9
"""Share of the test samples whose labels choose a newcomer's weights; the rest measure."""


def train_and_val(
    rows: Rows, share: float, seed: int, client: int, images: int | None = None, step: int = 0
) -> tuple[Tensor, Tensor]:
    """Split a client's rows into training and held-out rows: `share` of them, at least one, but none of a single row.

    Where the training set was copied, rows that differ by a multiple of `images` are the same image. A client does not
    train on an image that it holds out, and holds none out where no training sample would be left.
    """
    order = rng.numpy_generator(seed, "validation", client, *([step] if step else [])).permutation(rows)
    held_out = min(max(1, round(share * len(rows))), max(0, len(rows) - 1))
    train, val = order[held_out:], order[:held_out]
    if images is not None:
        train = train[~np.isin(train % images, val % images)]
        train, val = (train, val) if len(train) else (order, order[:0])
    return torch.from_numpy(train), torch.from_numpy(val)


def train_then_val(
    rows: Rows, share: float, time: NDArray[np.float64], begin: NDArray[np.float64] | None = None
) -> tuple[Tensor, Tensor]:
    """Split a client's rows by time: the last `share` of them are held out, at least one, but none of a single row.

    Where rows are windows that begin at `begin` and end at `time`, training windows end before the first one that is
    held out begins; those between are left out. Where none would be left to train on, none is held out.
    """
    order = rows[np.argsort(time[rows], kind="stable")]
    held_out = min(max(1, round(share * len(rows))), max(0, len(rows) - 1))
    train, val = order[: len(rows) - held_out], order[len(rows) - held_out :]
    if begin is not None and held_out:
        before = time[train] < begin[val].min()
        train, val = (train[before], val) if before.any() else (order, order[:0])
    return torch.from_numpy(train), torch.from_numpy(val)


def newcomer(name: str, rows: Rows, test: Rows, labels: Rows, samples: Samples, seed: int) -> Newcomer:
    """Return a newcomer: some rows of the test set, most of which choose its weights while the rest measure.

    `rows` are places in `test`, and `labels` belong to all of `test`.
    """
    order = rng.numpy_generator(seed, "newcomers").permutation(len(rows))
    cut = min(round(FIT_SHARE * len(rows)), len(rows) - 1)
    targets = None if samples.targets is None else samples.targets[test]
    fit, score = rows[order[:cut]], rows[order[cut:]]
    fit_rows, fit_labels, score_rows, score_labels = map(torch.from_numpy, (fit, labels[fit], score, labels[score]))
    of_fit, of_score = (None if targets is None else torch.from_numpy(targets[chosen]) for chosen in (fit, score))
    return Newcomer(name, fit_rows, fit_labels, score_rows, score_labels, of_fit, of_score)
