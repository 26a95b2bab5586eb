"""The test whether a client's data changed, and the weights that go by it."""

import pytest
import torch

from hcfl.errors import InputError
from hcfl.tiers import ForgettingEM, SampleWiseEM
from hcfl.tiers.change_test import loss_increase
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.weighting import EStepInputs


def test_p_values_by_hand():
    small, large = torch.tensor([0.1, 0.2]), torch.tensor([0.5, 0.7, 0.9])
    found = loss_increase([small, large, small, torch.zeros(0)], [large, small, torch.tensor([0.15]), large])
    # All 5 over 2 = 10 orders are as probable: this is the most extreme one, and the least; 0.15 is in the middle.
    assert found.tolist() == pytest.approx([1 / 10, 1, 2 / 3, 1])


def test_false_alarms_are_as_rare_as_the_level_and_changes_are_found():
    generator = torch.Generator().manual_seed(0)
    before = list(-torch.rand(300, 6, generator=generator).log())
    same, other = list(-torch.rand(300, 20, generator=generator).log()), [one + 2 for one in before]
    level = 0.05
    alarms = float((loss_increase(before, same) < level).float().mean())
    assert alarms <= level + 3 * (level * (1 - level) / 300) ** 0.5
    assert alarms > level / 3  # and it is a test, not a threshold that nothing reaches
    assert float((loss_increase(before, other) < level).float().mean()) > 0.9


def test_evidence_fades_and_a_change_drops_it():
    weights = torch.tensor([[0.64, 0.36, 0.0], [0.64, 0.36, 0.0]])
    found = ForgettingEM(0.4, forget=0.5, false_alarms=0.01).renewed(weights, torch.tensor([0.01, 0.009]))
    assert found[0].tolist() == pytest.approx([0.8 / 1.401, 0.6 / 1.401, 0.001 / 1.401], rel=1e-5)
    assert found[1].tolist() == pytest.approx([1 / 3] * 3)


def test_nothing_is_forgotten_within_a_step():
    generator = torch.Generator().manual_seed(1)
    segments = Segments((3, 4))
    inputs = EStepInputs(torch.rand(7, 2, generator=generator).log(), segments, torch.ones(2, 2), torch.ones(2, 2))
    start = ForgettingEM(0.4).start(torch.tensor([[0.7, 0.3], [0.2, 0.8]]), segments)
    (mine, gamma), (theirs, expected) = (choice(0.4).e_step(start, inputs) for choice in (ForgettingEM, SampleWiseEM))
    assert torch.equal(mine.client, theirs.client)
    assert torch.equal(mine.sample, theirs.sample)
    assert torch.equal(gamma, expected)


@pytest.mark.parametrize("wrong", [{"forget": 1.5}, {"false_alarms": 1.0}, {"mu": 2.0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InputError):
        ForgettingEM(**{"mu": 0.4, **wrong})
