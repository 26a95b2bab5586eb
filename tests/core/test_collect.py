"""How many uploads a round needs, and what makes it diverge: kinds of refusals, not their sentences."""

from types import SimpleNamespace

import pytest

from hcfl.config import AdmissionConfig
from hcfl.core.collect import diverged, missing_clients
from hcfl.core.refusal import NOT_FINITE, UNLIKE, Refusal
from hcfl.core.setting import RoundTask, uploads_needed
from hcfl.core.state import Missing
from helpers import setting_of


@pytest.mark.parametrize(
    ("quorum", "clients", "needed"),
    [(0.5, 12, 6), (0.5, 11, 6), (0.7, 10, 7), (1.0, 3, 3), (0.01, 5, 1), (0.28, 25, 7)],
)
def test_a_quorum_is_a_share_of_the_sampled_clients_rounded_up(quorum, clients, needed):
    assert uploads_needed(quorum, clients) == needed
    chosen = setting_of(None, None, None, admission=AdmissionConfig(quorum=quorum))
    assert RoundTask(chosen, None, range(clients), {}).needed == needed


def test_most_models_that_are_not_finite_or_too_long_are_a_divergence():
    update = SimpleNamespace(clients=(0, 1, 2))
    long, other = Refusal("too long", "any text"), Refusal("impossible", NOT_FINITE.text)
    assert diverged(update, {0: NOT_FINITE, 2: long})
    assert not diverged(update, {0: NOT_FINITE})
    assert not diverged(update, {0: other, 1: UNLIKE, 2: other})


def test_missing_clients_did_not_answer_or_were_refused():
    update = SimpleNamespace(missing=(Missing(4, "is not connected"),))
    found = missing_clients(update, {3: UNLIKE, 1: NOT_FINITE}, attempt=2)
    assert found == (
        Missing(4, "is not connected", refused=False, attempt=2),
        Missing(1, NOT_FINITE.text, refused=True, attempt=2),
        Missing(3, UNLIKE.text, refused=True, attempt=2),
    )
