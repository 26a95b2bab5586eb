"""The standard deviation of the noise in clipped uploads, from the settings of a run."""

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
    """Return the ε that Flower's formula has for this noise; above 1, the formula guarantees nothing."""
    noise = multiplier(privacy)
    assert noise is not None
    assert privacy.delta is not None
    return sqrt(2 * log(1.25 / privacy.delta)) / noise


def bound(parts: Parts, clip: float) -> float:
    """Return the largest norm of an upload: changes of models have `clip`, each kind of shares another."""
    return clip * sqrt(1 + sum(name in parts for name in SHARES))


def deviation(privacy: PrivacyConfig, parts: Parts, clients: int) -> float:
    """Return the standard deviation of the noise in a sum over clients, in every number of it.

    Central: the server adds it once; one client more or less changes the sum by at most the bound of an upload. Local:
    every client adds it; replacing a client's data changes its upload by at most twice the bound.
    """
    noise = multiplier(privacy)
    if noise is None or privacy.clip is None:
        return 0.0
    largest = bound(parts, privacy.clip)
    return noise * largest if privacy.mode == "central-dp" else noise * 2 * largest * sqrt(clients)
