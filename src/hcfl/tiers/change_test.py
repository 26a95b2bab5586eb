"""A test whether a client's data have changed: whether its losses on new samples are larger than on held-out ones."""

from collections.abc import Sequence

import torch
from torch import Tensor


def loss_increase(before: Sequence[Tensor], new: Sequence[Tensor]) -> Tensor:
    """Test each client's new losses against those before, one-sided, by Mann and Whitney; return p-values, (clients,).

    Both are losses of one model on samples that it was not trained on, so without a change all orders of them have the
    same probability, whatever their distribution: a test at level α gives a false alarm with probability α at most. It
    is exact where a client has few samples without ties. With n samples before and m new ones, no p-value is below
    1 / (n + m over n); a client without samples has p = 1.

    >>> loss_increase([torch.tensor([0.1, 0.2])], [torch.tensor([0.5, 0.7, 0.9])]).tolist()
    [0.1...]
    """
    from scipy.stats import mannwhitneyu  # takes a second: only where data have changed

    found = torch.ones(len(before))
    for client, (old, fresh) in enumerate(zip(before, new, strict=True)):
        if len(old) and len(fresh):
            found[client] = float(mannwhitneyu(fresh.numpy(), old.numpy(), alternative="greater").pvalue)
    return found
