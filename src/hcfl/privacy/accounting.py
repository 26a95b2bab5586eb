"""Privacy accounting: (ε, δ) of several releases with Gaussian noise."""

from math import exp, sqrt

from scipy.special import log_ndtr, ndtr

from hcfl.config import PrivacyConfig
from hcfl.privacy.noise import multiplier


def delta_of(epsilon: float, noise_multiplier: float, releases: int) -> float:
    """Return the exact δ of that many releases, each with noise of `noise_multiplier` times the sensitivity.

    Several Gaussian releases are as one with √releases times the sensitivity, whatever was chosen in between (Dong,
    Roth and Su, Gaussian differential privacy, 2022); δ of one is by Balle and Wang (2018).
    """
    distance = sqrt(releases) / noise_multiplier
    far, near = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
    return float(ndtr(far) - exp(epsilon + log_ndtr(near)))


def epsilon_of(delta: float, noise_multiplier: float, releases: int) -> float:
    """Return the smallest ε that these releases have at δ: `epsilon_of(1e-5, 1.0, 10)` is about 17.9."""
    from scipy.optimize import brentq  # slow to import: only where a run adds noise

    if delta_of(0.0, noise_multiplier, releases) <= delta:
        return 0.0
    above = 1.0
    while delta_of(above, noise_multiplier, releases) > delta:
        above *= 2
    found: float = brentq(
        lambda epsilon: delta_of(epsilon, noise_multiplier, releases) - delta, 0.0, above, xtol=1e-12, rtol=1e-12
    )
    return found


def spent(privacy: PrivacyConfig, rounds: int) -> tuple[float, float] | None:
    """Return (ε, δ) of a client that took part in so many rounds; None where no noise was added.

    Nothing is taken off for rounds in which clients were not sampled.
    """
    noise = multiplier(privacy)
    if noise is None or privacy.delta is None:
        return None
    return epsilon_of(privacy.delta, noise, rounds), privacy.delta
