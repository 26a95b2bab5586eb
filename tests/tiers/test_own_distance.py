"""A distance of a user's own that returns something else is told in a sentence, not in a traceback."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import hcfl
from hcfl import InputError
from hcfl.methods import build
from hcfl.tiers import Participants, UpdateCosine
from hcfl.tiers.distance import measured

THREE = Participants((4, 7, 9), torch.zeros(3, dtype=torch.long), torch.ones(3), updates=torch.eye(3))


@dataclass(frozen=True)
class Returns:
    """A distance that returns what it was given."""

    what: Any
    needs: str = "updates"

    def between(self, participants):
        return self.what


def test_a_distance_is_what_it_returned():
    assert measured(UpdateCosine(), THREE).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (
            torch.zeros(3),
            r"method.distance = Returns: between\(\) returned a tensor of shape \(3,\), but 3 participants",
        ),
        (torch.zeros(2, 3), r"need one of \(3, 3\)"),
        (None, "returned NoneType"),
        (torch.full((3, 3), torch.nan), "returned NaN or infinity"),
        (torch.full((3, 3), torch.inf), "returned NaN or infinity"),
    ],
)
def test_anything_else_is_refused(what, sentence):
    with pytest.raises(InputError, match=sentence):
        measured(Returns(what), THREE)


def test_evidence_that_nobody_sends_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    needs = 'gradients'\n\n    def between(self, participants):\n        return None\n"
    )
    with pytest.raises(
        InputError, match="needs gradients, but clients can send prototypes, half prototypes, feature norms, updates"
    ):
        hcfl.run("hcfl+(fedrc)", rounds=1, distance=f"{tmp_path / 'mine.py'}:Mine", out=tmp_path / "run")
    assert build("hcfl+(fedrc)").needs == {"prototypes"}
