"""Inputs as they are stored, and as networks read them."""

import pytest
import torch
from torch.testing import assert_close

from hcfl.models.inputs import Scaled, Scaling, lined_up, some

STORED = torch.tensor([[0, 10], [4, 30], [8, 20], [255, 255]], dtype=torch.uint8)
SCALING = Scaling(torch.tensor([4.0, 20.0]), torch.tensor([2.0, 10.0]))
EXPECTED = torch.tensor([[-2.0, -1.0], [0.0, 1.0], [2.0, 0.0], [125.5, 23.5]])


@pytest.mark.parametrize(
    "index", [slice(None), slice(1, 3), torch.tensor([2, 0]), torch.tensor([[0, 1], [3, 3]])], ids=str
)
def test_inputs_are_standardised_when_they_are_looked_at(index):
    found = Scaled(STORED, SCALING)[index]
    assert found.dtype == torch.float32
    assert_close(found, EXPECTED[index])


def test_scaled_inputs_know_their_number_and_where_they_lie():
    inputs = Scaled(STORED, SCALING)
    assert len(inputs) == 4
    assert inputs.device == torch.device("cpu")


def test_some_of_the_inputs_are_kept_as_all_were():
    rows = torch.tensor([3, 1])
    chosen = some(Scaled(STORED, SCALING), rows)
    assert chosen.stored.tolist() == [[255, 255], [4, 30]]
    assert chosen.stored.dtype == torch.uint8
    assert chosen.scaling is SCALING
    assert_close(chosen[:], EXPECTED[rows])
    assert_close(some(EXPECTED, rows), EXPECTED[rows])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_scaling_is_measured_over_the_rows_of_all_parts(dtype):
    # The last row belongs to nobody: means of (0, 4, 8) and (10, 30, 20), variances 32/3 and 200/3.
    found = Scaling.of(STORED.to(dtype), torch.tensor([0, 2, 1]))
    assert_close(found.mean, torch.tensor([4.0, 20.0]))
    assert_close(found.std**2, torch.tensor([32 / 3, 200 / 3]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_what_never_varies_is_only_centred(dtype):
    constant = torch.full((5, 2, 2, 1), 7).to(dtype)
    found = Scaling.of(constant, torch.arange(5))
    assert (found(constant) == 0).all()


def test_images_are_scaled_by_channel_and_other_inputs_by_feature():
    assert Scaling.of(torch.randint(0, 9, (6, 4, 4, 3)).to(torch.uint8), torch.arange(6)).mean.shape == (3,)
    assert Scaling.of(torch.randn(6, 5), torch.arange(6)).mean.shape == (5,)


def test_inputs_are_lined_up_by_an_index_of_any_shape():
    index = torch.tensor([[0, 1, 3], [3, 3, 2]])
    assert_close(lined_up(Scaled(STORED, SCALING), index), EXPECTED[index])
    assert_close(lined_up(EXPECTED, index), EXPECTED[index])
