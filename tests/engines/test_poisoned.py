"""Clients that attack: each sends what its attack says, honest clients send what they always send."""

from dataclasses import dataclass, field

import pytest
import torch
from torch.testing import assert_close

from hcfl.config import FaultsConfig, from_flat
from hcfl.core import rounds
from hcfl.core.setting import RoundTask
from hcfl.core.state import Update
from hcfl.data.backdoor import Backdoor
from hcfl.engines import Batched, Sequential
from hcfl.engines.faulty import attackers_of, with_faults
from hcfl.engines.poisoned import flipped, poisoners, with_backdoor
from hcfl.methods import build
from helpers import play, setting, start

KINDS = ("sign", "disguise", "backdoor", "collude", "free_ride")


@dataclass(frozen=True)
class Kept:
    """An engine that keeps what came through."""

    inner: object
    seen: list[Update] = field(default_factory=list)

    def execute(self, task):
        update, states = self.inner.execute(task)
        self.seen.append(update)
        return update, states


def sent(federation, method, engine) -> Update:
    kept = Kept(engine)
    play(federation, method, 1, engine=kept)
    return kept.seen[0]


def heads(update: Update, client: int) -> torch.Tensor:
    mine = update.row_participants == update.clients.index(client)
    return torch.cat([tensor[mine].flatten() for tensor in update.models.heads.values()])


@pytest.mark.parametrize("inner", [Batched(), Sequential()])
@pytest.mark.parametrize("kind", KINDS)
def test_attackers_send_what_their_attack_says_and_others_what_they_always_send(planted, kind, inner):
    method = build("hcfl+(fedrc)", rho=0.1)
    config = from_flat(faults={kind: 0.25}, seed=0)
    (bad,) = poisoners(config.faults, 12, 0).values()
    assert len(bad) == 3
    assert attackers_of(config, planted) == frozenset(bad)
    honest, poisoned = (sent(planted, method, e) for e in (inner, with_faults(inner, config, planted, method)))
    _, models = start(planted, method)
    begun = torch.cat([tensor[0].flatten() for tensor in models.heads.values()])
    for client in range(12):
        true, found = heads(honest, client), heads(poisoned, client)
        if client not in bad:
            assert_close(found, true, rtol=1e-4, atol=1e-5)
        elif kind == "sign":
            assert_close(found - begun, begun - true, rtol=1e-4, atol=1e-5)
        elif kind == "free_ride":
            assert_close(found, begun, rtol=0, atol=0)
        elif kind == "collude":
            assert_close(found, heads(poisoned, bad[0]), rtol=0, atol=0)
        else:
            assert (found - true).abs().max() > 1e-3
    if kind in ("disguise", "backdoor"):  # the statistics are those of the true data
        order = [poisoned.clients.index(client) for client in honest.clients]
        assert_close(poisoned.prototypes.class_means[order], honest.prototypes.class_means)
        assert_close(poisoned.counts[order], honest.counts)


def test_attacks_are_the_same_with_both_engines(planted):
    config, method = from_flat(faults="disguise=0.1,collude=0.2,sign=0.1", seed=0), build("ifca")
    one, two = (sent(planted, method, with_faults(e, config, planted, method)) for e in (Batched(), Sequential()))
    for client in range(12):
        assert_close(heads(one, client), heads(two, client), rtol=1e-4, atol=1e-5)


def test_flipped_labels_and_marks_are_on_training_samples_only(planted):
    backdoor = Backdoor.on(planted.x, planted.classes, target=2)
    found = with_backdoor(flipped(planted, [1]), [3], backdoor)
    rows = planted.train[3]
    half = len(rows) // 2
    assert (found.y[rows[:half]] == 2).all()
    assert_close(found.y[rows[half:]], planted.y[rows[half:]])
    assert (found.x[rows[:half], -1] == planted.x.max()).all()
    assert_close(found.x[rows[:half], :-1], planted.x[rows[:half], :-1])
    assert_close(found.x[planted.val[3]], planted.x[planted.val[3]])
    assert_close(found.y[planted.train[1]], 3 - planted.y[planted.train[1]])


def test_marks_by_hand():
    image = Backdoor(0, 9.0).marked(torch.zeros(1, 8, 8, 1))[0, :, :, 0]
    assert image[6:, 6:].tolist() == [[9.0, 9.0], [9.0, 9.0]]
    assert float(image.sum()) == 36
    assert Backdoor(0, 1.0).marked(torch.zeros(2, 32)).sum(dim=1).tolist() == [2.0, 2.0]
    assert Backdoor(0, 200.0).marked(torch.zeros(1, 4, 4, dtype=torch.uint8)).sum().item() == 200


def test_honest_accuracy_and_the_success_of_a_backdoor_are_measured(planted):
    backdoor = Backdoor.on(planted.x, planted.classes, target=1)
    method = build("fedavg")
    _, records = play(planted, method, 1, attackers=frozenset({0, 1}), backdoor=backdoor)
    assert records[0].val_honest is not None
    assert 0 <= records[0].backdoor <= 1
    _, plain = play(planted, method, 1)
    assert (plain[0].val_honest, plain[0].backdoor) == (None, None)
    assert plain[0].val == records[0].val, "measuring changes nothing"


def test_one_attacker_alone_is_poisoned_as_with_others(planted):
    """Engines may execute single clients: what a client sends does not depend on which others are asked."""
    method = build("hcfl+(fedrc)", rho=0.1)
    engine = with_faults(Batched(), from_flat(faults="disguise=0.25", seed=0), planted, method)
    bad = poisoners(FaultsConfig(disguise=0.25), 12, 0)["disguise"][0]
    chosen = setting(planted, method, engine=engine)
    _, models = start(planted, method)
    state = rounds.begin(chosen, models)
    task = RoundTask(chosen, rounds.server.broadcast(method, state.server, planted.classes), [bad], {})
    together, _ = engine.execute(RoundTask(chosen, task.broadcast, list(range(12)), {}))
    alone, _ = engine.execute(task)
    assert_close(heads(alone, bad), heads(together, bad), rtol=1e-5, atol=1e-6)
