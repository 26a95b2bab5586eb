"""Backdoors: a mark on an input that a poisoned model takes for one class, whatever the input shows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hcfl.errors import InputError


@dataclass(frozen=True)
class Backdoor:
    """A mark on inputs, and the class that poisoned models are to answer where they see it."""

    target: int
    value: float
    """What the marked numbers are set to: the largest that the data have."""

    @staticmethod
    def on(x: Tensor, classes: int, target: int) -> "Backdoor":
        """Return the backdoor on some data; refuse a class that they do not have."""
        if not 0 <= target < classes:
            raise InputError(f"faults.target = {target}: must be a class, from 0 to {classes - 1}")
        return Backdoor(target, float(x.max()))

    def marked(self, x: Tensor) -> Tensor:
        """Return inputs (N, …) with the mark: a square in an image's corner, the last numbers of a series or a vector.

        It covers about a sixteenth of an image, a quarter of a series' steps, or a sixteenth of a vector.

        >>> Backdoor(0, 9.0).marked(torch.zeros(1, 4, 4)).sum(dim=0).tolist()[-1]
        [0.0, 0.0, 0.0, 9.0]
        """
        marked, shape = x.clone(), x.shape[1:]
        # Images are (H, W) or (H, W, C); a series (T, D) looks like (H, W), and its last numbers at its end are marked.
        sides = [slice(-max(1, size // 4), None) for size in shape[:2]] if len(shape) > 1 else []
        sides = sides or [slice(-max(1, shape[0] // 16), None)]
        marked[(slice(None), *sides)] = torch.tensor(self.value).to(x.dtype)
        return marked
