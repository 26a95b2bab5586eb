"""Small federations that tests share."""

import numpy as np
import pytest
import torch

from hcfl.data import Federation


@pytest.fixture(autouse=True)
def _one_thread():
    """Tests run side by side, and models are tiny."""
    torch.set_num_threads(1)


def blobs(classes: int = 4, per_class: int = 120, features: int = 8, seed: int = 0):
    """Well-separated Gaussian classes: (x, y)."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, features)) * 4
    y = np.repeat(np.arange(classes), per_class)
    x = centres[y] + generator.normal(size=(len(y), features))
    return x.astype(np.float32), y


@pytest.fixture
def planted() -> Federation:
    """Twelve clients in three concepts that relabel every class: FedAvg cannot serve them."""
    x, y = blobs()
    return Federation.from_arrays(x, y, clients=12, partition="iid", beta=0.9, concepts=3, seed=1)


@pytest.fixture
def skewed() -> Federation:
    """Eight clients with label shift and no concept shift."""
    x, y = blobs(seed=3)
    return Federation.from_arrays(x, y, clients=8, alpha=0.5, seed=2)
