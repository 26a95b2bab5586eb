"""What several test files share."""

from dataclasses import replace

import numpy as np
from torch.testing import assert_close

from hcfl.core import rounds
from hcfl.core.setting import Setting
from hcfl.core.sgd import LocalSGD
from hcfl.engines import Sequential
from hcfl.models import MODELS
from hcfl.models.ensemble import initialise
from hcfl.tiers import Assigned


def blobs(classes: int = 4, per_class: int = 120, features: int = 8, seed: int = 0):
    """Well-separated Gaussian classes: (x, y)."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, features)) * 4
    y = np.repeat(np.arange(classes), per_class)
    x = centres[y] + generator.normal(size=(len(y), features))
    return x.astype(np.float32), y


def start(federation, method, seed=0):
    """The network and the initial models."""
    clusters = federation.clients if method.clusters is None else method.clusters
    identical = isinstance(method.weighting, Assigned)
    shape, classes = federation.shape, federation.classes
    return initialise(MODELS["mlp"], shape, classes, method.topology, clusters, seed, identical)


def setting(federation, method, **changes) -> Setting:
    """Small steps that a test can afford."""
    network, _ = start(federation, method)
    sgd = LocalSGD(lr=0.1, batch=16, epochs=2)
    return replace(Setting(federation, method, network, Sequential(), sgd), **changes)


def play(federation, method, number=3, **changes):
    """Return the final state and all records."""
    chosen = setting(federation, method, **changes)
    _, ensemble = start(federation, method, chosen.seed)
    played = list(rounds.play(chosen, rounds.begin(chosen, ensemble), number))
    return played[-1][0], [record for _, record in played]


def same(one, two):
    assert one.keys() == two.keys()
    for name in one:
        assert_close(one[name], two[name], rtol=0, atol=0)
