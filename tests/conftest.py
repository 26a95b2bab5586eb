"""Small federations that tests share."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for programs that tests start: a second thread waits for a free core

import pytest
import torch
from hypothesis import settings

from hcfl.data import Federation
from helpers import blobs

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that put the tests into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine, not about the code.
settings.register_profile("hcfl", deadline=None)
settings.register_profile("full", deadline=None, max_examples=2000)
settings.load_profile("full" if os.environ.get("HYPOTHESIS_PROFILE") == "full" else "hcfl")


@pytest.fixture(autouse=True)
def _one_thread():
    """Tests run side by side, and models are tiny."""
    torch.set_num_threads(1)


@pytest.fixture
def planted() -> Federation:
    """Twelve clients in three concepts that relabel every class: FedAvg cannot serve them."""
    x, y = blobs()
    return Federation.from_arrays(x, y, clients=12, partition="iid", beta=0.9, concepts=3, seed=1, test_on="tenth")


@pytest.fixture
def skewed() -> Federation:
    """Eight clients with label shift and no concept shift."""
    x, y = blobs(seed=3)
    return Federation.from_arrays(x, y, clients=8, alpha=0.5, seed=2, test_on="tenth")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Tests leave the user's cache alone, and know of no local copies but their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HCFL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("HCFL_DATA", raising=False)
        yield
