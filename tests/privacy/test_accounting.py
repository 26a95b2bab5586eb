"""ε and δ against numbers that other software gives, and against the definition."""

from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from hcfl.config import PrivacyConfig
from hcfl.privacy.accounting import delta_of, epsilon_of, spent


@pytest.mark.parametrize(
    ("noise", "releases", "epsilon"),
    [(1.0, 1, 4.37717810), (1.0, 100, 91.8172896), (5.0, 30, 4.86608285), (4.8448, 20, 3.99078091)],
)
def test_epsilon_is_what_dp_accounting_gives(noise, releases, epsilon):
    assert epsilon_of(1e-5, noise, releases) == pytest.approx(epsilon, rel=1e-7)


@pytest.mark.parametrize(("noise", "releases", "delta"), [(1.0, 30, 1e-5), (0.3, 7, 1e-6), (8.0, 200, 1e-9)])
def test_epsilon_is_what_dp_accounting_gives_where_it_is_installed(noise, releases, delta):
    """It is no dependency: it holds `attrs` back at 23, and the sum of Gaussians needs no numerical integral."""
    dp_event = pytest.importorskip("dp_accounting.dp_event")
    pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_event.GaussianDpEvent(noise), releases)
    assert epsilon_of(delta, noise, releases) == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


@given(st.floats(0.3, 20), st.integers(1, 500), st.floats(1e-9, 0.1))
def test_epsilon_and_delta_belong_together(noise, releases, delta):
    epsilon = epsilon_of(delta, noise, releases)
    assert delta_of(epsilon, noise, releases) == pytest.approx(delta, rel=1e-4) or epsilon == 0


def test_delta_is_what_the_definition_says():
    """δ(ε) = ∫ max(0, p − e^ε·q) of the outputs with and without a client, by the trapezoidal rule."""
    x = np.linspace(-15, 16, 400_001)
    for epsilon in (0.0, 0.5, 2.0):
        gap = np.maximum(0, norm.pdf(x, 1, 1.5) - np.exp(epsilon) * norm.pdf(x, 0, 1.5))
        assert delta_of(epsilon, 1.5, 1) == pytest.approx(np.trapezoid(gap, x), abs=1e-9)


def test_what_a_run_has_spent():
    assert spent(PrivacyConfig(), 10) is None
    assert spent(PrivacyConfig(mode="secagg"), 10) is None
    central = PrivacyConfig(mode="central-dp", clip=3.0, noise_multiplier=2.0, delta=1e-4)
    assert spent(central, 9) == (pytest.approx(epsilon_of(1e-4, 2.0, 9)), 1e-4)
    local = PrivacyConfig(mode="local-dp", clip=3.0, epsilon=0.5, delta=1e-5)
    assert spent(local, 1)[0] < 0.5  # the formula of the mod is a bound, ours is exact
    assert spent(local, 7) == (pytest.approx(epsilon_of(1e-5, sqrt(2 * log(1.25e5)) / 0.5, 7)), 1e-5)
