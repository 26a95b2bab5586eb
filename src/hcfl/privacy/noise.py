"""How much noise: in uploads that are clipped, from the settings of a run."""

from math import log, sqrt

from hcfl.config import PrivacyConfig
from hcfl.privacy.sums import SHARES, Parts


def multiplier(privacy: PrivacyConfig) -> float | None:
    """Return the standard deviation of the noise in units of the sensitivity; None where there is no noise."""
    if privacy.mode == "central-dp" or privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    if privacy.mode == "local-dp":
        assert privacy.epsilon is not None
        assert privacy.delta is not None
        return sqrt(2 * log(1.25 / privacy.delta)) / privacy.epsilon  # as Flower's LocalDpMod has it
    return None


def of_one_upload(privacy: PrivacyConfig) -> float:
    """Return the ε that Flower's formula has for this noise; where it is above 1, it is a name for the noise only."""
    noise = multiplier(privacy)
    assert noise is not None
    assert privacy.delta is not None
    return sqrt(2 * log(1.25 / privacy.delta)) / noise


def bound(parts: Parts, clip: float) -> float:
    """Return the largest norm of an upload: changes of models have `clip`, each kind of shares another."""
    return clip * sqrt(1 + sum(name in parts for name in SHARES))


def deviation(privacy: PrivacyConfig, parts: Parts, clients: int) -> float:
    """Return the standard deviation of the noise in a sum over clients, in every number of it.

    Central: once, and a client's upload in place of nothing changes the sum by no more than its bound. Local: by every
    client, and one upload in place of any other changes what is sent by twice the bound.
    """
    noise = multiplier(privacy)
    if noise is None or privacy.clip is None:
        return 0.0
    largest = bound(parts, privacy.clip)
    return noise * largest if privacy.mode == "central-dp" else noise * 2 * largest * sqrt(clients)
