"""Clients that fail, simulated: what they send is refused with its reason, and is as if it had never come."""

import re
from dataclasses import dataclass

import pytest
import torch
from torch.testing import assert_close

import hcfl
from hcfl.config import AdmissionConfig, FaultsConfig, from_flat
from hcfl.core.changes import lengthened
from hcfl.core.state import Broadcast, Update
from hcfl.engines import Batched, Sequential
from hcfl.engines.faulty import Faulty, drawn, with_faults
from hcfl.engines.poisoned import flipped, poisoners
from hcfl.errors import InputError
from hcfl.launch import execute, resume
from hcfl.methods import build
from hcfl.models.ensemble import Ensemble
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder
from hcfl.runs.prepare import prepare
from helpers import play, same

REASONS = {
    "drop": "dropped out before it trained",
    "drop_after": "dropped out after it trained",
    "straggle": "answered after .* times the usual time, the deadline is 1",
    "nan": "sent numbers that are not finite",
    "inf": "sent numbers that are not finite",
    "shape": "sent heads that are not those of the model",
    "clusters": r"sent weights of shape \(1, \d\), but \(1, \d\) is needed",
    "stale": "answered in round 1, but this is round 2",
    "sizes": "sent a size of .*, which it cannot have",
    "norm": "sent a model that is .* times as long as most others and the one it got",
    "prototypes": "sent prototypes that cannot be those of its samples",
    "weights": "sent weights that are no distribution",
}


def faults(**shares) -> FaultsConfig:
    return FaultsConfig.model_validate(shares)


def fails(broadcast, seed, wanted):
    return set(drawn(wanted, seed, broadcast))


@dataclass(frozen=True)
class Without:
    """An engine in which those who would fail are simply not there."""

    inner: Batched | Sequential
    wanted: FaultsConfig

    def execute(self, task):
        gone = fails(task.broadcast, task.setting.seed, self.wanted)
        return self.inner.execute(task.only([one for one in task.participants if one not in gone]))


def test_there_is_a_reason_for_every_kind():
    assert set(REASONS) == set(faults().passing)


@pytest.mark.parametrize(
    ("inner", "kind"), [*((Batched(), kind) for kind in REASONS), (Sequential(), "nan"), (Sequential(), "clusters")]
)
def test_a_fault_is_refused_with_its_reason_and_as_if_the_client_had_not_been_there(planted, inner, kind):
    wanted = faults(**{kind: 0.25, "deadline": 1.0})
    method, number = build("hcfl+(fedrc)", rho=0.1), 2
    expected, absent = play(planted, method, number, engine=Without(inner, wanted))
    state, records = play(planted, method, number, engine=Faulty(inner, wanted))
    for record in records:
        assert len(record.missing) == 3
        assert {one.refused for one in record.missing} == {kind not in ("drop", "drop_after", "straggle")}
    said = [one.reason for one in records[1].missing]
    assert all(re.fullmatch(REASONS[kind], one) for one in said), said
    assert [record.participants for record in records] == [record.participants for record in absent] == [9, 9]
    assert [record.changes for record in records] == [record.changes for record in absent]
    same(state.server.ensemble.heads, expected.server.ensemble.heads)
    same(state.server.ensemble.extractors, expected.server.ensemble.extractors)
    same(vars(state.server) | PLAIN, vars(expected.server) | PLAIN)
    assert state.clients.keys() == expected.clients.keys()
    for client, mine in state.clients.items():
        assert mine.round == expected.clients[client].round, "who is refused stays where it was"
        assert_close(mine.weights.client, expected.clients[client].weights.client, rtol=0, atol=0)


PLAIN = dict.fromkeys(
    ("round", "ensemble", "clusters", "born", "changes", "anchor", "common", "signatures", "gaussians"), torch.zeros(0)
)
"""What is no tensor, or compared by itself."""


@pytest.mark.parametrize("kind", ["nan", "shape"])
def test_sums_of_what_clients_sent_leave_refused_ones_out(planted, kind):
    wanted, method = faults(**{kind: 0.25}), build("fedgmm")
    expected, _ = play(planted, method, 2, engine=Without(Batched(), wanted))
    state, _ = play(planted, method, 2, engine=Faulty(Batched(), wanted))
    same(vars(state.server.gaussians), vars(expected.server.gaussians))


@dataclass(frozen=True)
class Broken:
    """The batched engine, whose client 4 sends NaN without anybody having planned it."""

    def execute(self, task):
        update, kept = Batched().execute(task)
        for name, tensor in update.models.heads.items():
            for row, owner in enumerate(update.row_participants.tolist()):
                if update.clients[owner] == 4:
                    update.models.heads[name][row] = torch.full_like(tensor[row], torch.nan)
        return update, kept


@dataclass(frozen=True)
class Alone:
    """The batched engine without client 4."""

    def execute(self, task):
        return Batched().execute(task.only([one for one in task.participants if one != 4]))


@pytest.mark.parametrize("name", ["hcfl+(fedem)", "ifca", "fedgmm", "stocfl"])
def test_one_client_that_diverges_is_left_out_and_the_run_goes_on(planted, name):
    state, records = play(planted, build(name), 2, engine=Broken())
    assert [[(one.client, one.reason) for one in record.missing] for record in records] == [
        [(4, "sent numbers that are not finite")]
    ] * 2
    assert 4 not in state.clients
    expected, _ = play(planted, build(name), 2, engine=Alone())
    assert_close(state.server.ensemble.heads, expected.server.ensemble.heads)
    if name == "fedgmm":
        assert_close(vars(state.server.gaussians), vars(expected.server.gaussians))


def test_without_faults_nothing_changes(planted):
    method = build("hcfl+(fedrc)", rho=0.1)
    expected, _ = play(planted, method, 2, engine=Batched())
    state, records = play(planted, method, 2, engine=Faulty(Batched(), faults()))
    assert [record.missing for record in records] == [(), ()]
    same(state.server.ensemble.heads, expected.server.ensemble.heads)


def broadcast(round_=1, attempt=0, clients=30):
    one = Ensemble({"e": torch.zeros(1, 1)}, {"h": torch.zeros(1, 1)}, "split")
    return Broadcast(round_, one, torch.ones(1, 2), (0,), (), torch.ones(clients, 1), attempt=attempt)


def test_shares_are_kept_in_every_round_and_draws_are_fresh_in_each_try():
    wanted = faults(drop=0.4, nan=0.1, stale=0.02)
    seen = []
    for round_ in range(1, 30):
        for attempt in range(2):
            found = drawn(wanted, 7, broadcast(round_, attempt))
            kinds = [list(found.values()).count(kind) for kind in ("drop", "nan", "stale")]
            assert kinds[:2] == [12, 3]
            assert kinds[2] in (0, 1)
            assert found == drawn(wanted, 7, broadcast(round_, attempt))
            seen.append(frozenset(found.items()))
    assert len(set(seen)) == len(seen)


def test_a_round_without_a_quorum_is_played_again_with_fresh_draws(planted):
    # 6 or 7 of 12 drop out, and 6 uploads are needed.
    engine = Faulty(Batched(), faults(drop=0.55))
    setting = {"engine": engine, "admission": AdmissionConfig(quorum=0.5, tries=20)}
    _, records = play(planted, build("fedavg"), 6, **setting)
    attempts = [{one.attempt for one in record.missing} for record in records]
    assert all(each == set(range(len(each))) for each in attempts)
    assert max(map(len, attempts)) > 1, "the test must see a round that was repeated"
    assert {record.participants for record in records} == {6}


SMALL = {"method": "hcfl+(fedrc)", "clients": 8, "epochs": 1, "rho": 0.1}


def test_without_a_quorum_a_run_stops_with_a_sentence_its_state_saved(tmp_path):
    # 4 or 5 of 8 drop out, and 4 are needed: sooner or later three tries are not enough.
    config = from_flat(**SMALL, rounds=40, faults="drop=0.6", evaluate_every=40)
    sentence = (
        r"admission.quorum = 0.5: 3 of 8 uploads count in round (\d+) after 3 tries, but 4 are needed "
        r"\(5 dropped out before it trained\); what was reached is saved$"
    )
    with pytest.raises(InputError, match=sentence) as raised:
        execute(prepare(config), tmp_path / "run")
    round_ = raised.value.round
    assert round_ > 1, "choose another seed"
    assert [row["round"] for row in run_folder.rows(tmp_path / "run", "metrics.jsonl")] == list(range(1, round_))
    assert checkpoint.load(tmp_path / "run" / "checkpoint")[0].server.round == round_ - 1
    last = [row for row in run_folder.rows(tmp_path / "run", "events.jsonl") if row["round"] == round_]
    assert [row["attempt"] for row in last] == [0] * 5 + [1] * 5 + [2] * 5
    with pytest.raises(InputError, match=sentence):
        resume(tmp_path / "run")


class Interrupted(BaseException):
    """Somebody pressed Ctrl-C."""


def test_a_run_with_faults_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    config = from_flat(
        **SMALL, rounds=4, faults="drop=0.3,nan=0.1,flip=0.2,scale=0.1,backdoor=0.1", quorum=0.6, tries=20, quarantine=3
    )
    execute(prepare(config), tmp_path / "whole")

    def stop(record):
        if record.round == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        execute(prepare(config), tmp_path / "run", stop)
    resume(tmp_path / "run")
    for name in ("events.jsonl", "clients.csv"):
        assert (tmp_path / "run" / name).read_text() == (tmp_path / "whole" / name).read_text()
    one, two = (checkpoint.load(tmp_path / name / "checkpoint")[0].server.ensemble for name in ("run", "whole"))
    same(one.heads, two.heads)
    events = run_folder.rows(tmp_path / "run", "events.jsonl")
    refused = [row for row in events if row["event"] == "refused"]
    assert {(row["client"] in range(8), row["reason"]) for row in refused} == {(True, REASONS["nan"])}


def test_of_clients_that_drop_out_and_send_nan_only_few_points_are_lost(tmp_path):
    settings = {"rounds": 12, "evaluate_every": 12, "clients": 20, "threads": 1}
    calm = hcfl.run("hcfl+(fedrc)", out=tmp_path / "calm", **settings)
    run = hcfl.run("hcfl+(fedrc)", out=tmp_path / "run", faults="drop=0.4,nan=0.1", **settings)
    assert [row["participants"] for row in run_folder.rows(run.path, "metrics.jsonl")] == [10] * 12
    models = run.state.server.ensemble
    assert all(tensor.isfinite().all() for tensor in (*models.heads.values(), *models.extractors.values()))
    assert run.summary["test_last"] > calm.summary["test_last"] - 0.03


def test_labels_are_flipped_where_somebody_trains_and_nowhere_else(planted):
    found = flipped(planted, [3, 5])
    for client in range(12):
        mine, theirs = planted.y[planted.train[client]], found.y[planted.train[client]]
        assert_close(theirs, 3 - mine if client in (3, 5) else mine)
        assert_close(found.y[planted.val[client]], planted.y[planted.val[client]])
    assert flipped(planted, []) is planted


def test_changes_are_multiplied_by_hand():
    sent = Ensemble({"e": torch.tensor([[1.0]])}, {"h": torch.tensor([[10.0], [20.0]])}, "split")
    update = Update(
        clients=(4, 6),
        sizes=torch.ones(2),
        models=Ensemble(
            {"e": torch.tensor([[2.0], [3.0]])}, {"h": torch.tensor([[11.0], [19.0], [12.0], [18.0]])}, "split"
        ),
        row_participants=torch.tensor([0, 0, 1, 1]),
        started=torch.eye(2).repeat(2, 1),
        mass=torch.eye(2).repeat(2, 1),
        weights=torch.full((2, 2), 0.5),
    )
    found = lengthened(sent, update, torch.tensor([1.0, -3.0])).models
    assert found.extractors["e"].flatten().tolist() == [2.0, 1 - 3 * 2.0]
    assert found.heads["h"].flatten().tolist() == [11.0, 19.0, 10 - 3 * 2.0, 20 + 3 * 2.0]


def test_poisoners_are_the_same_in_every_round_and_others_send_what_they_always_send(planted):
    wanted = faults(flip=0.25, scale=0.5, factor=10.0)
    found = poisoners(wanted, 12, seed=3)
    flipping, scaling = found["flip"], found["scale"]
    assert (len(flipping), len(scaling), len({*flipping, *scaling})) == (3, 6, 9)
    assert poisoners(wanted, 12, seed=4) != found

    class Watched:
        """Keeps what came through."""

        def execute(self, task):
            self.update, kept = self.engine.execute(task)
            return self.update, kept

    plain, bad = Watched(), Watched()
    plain.engine = Batched()
    config = from_flat(faults=wanted.model_dump(), seed=3)
    bad.engine = with_faults(Batched(), config, planted, build("fedavg"))
    for watched in (plain, bad):
        play(planted, build("fedavg"), 1, engine=watched)
    one, two = (torch.cat([t.flatten(1) for t in each.update.models.heads.values()], dim=1) for each in (plain, bad))
    changed = ((one - two).abs().amax(dim=1) > 1e-6).nonzero().flatten().tolist()
    assert changed == sorted([*flipping, *scaling])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"faults": "drop"}, r"faults = 'drop': must look like drop=0.4,nan=0.1$"),
        ({"faults": "drop=2"}, r"faults.drop = '2': should be less than or equal to 1$"),
        (
            {"faults": "dorp=0.1"},
            r"faults = 'dorp=0.1': there is no fault dorp; there are drop, drop_after, .*free_ride$",
        ),
        ({"faults": {"drop": 0.7, "nan": 0.4}}, r"faults = .*: the shares drop=0.7, nan=0.4 must sum up to at most 1$"),
        ({"faults": "flip=0.7,scale=0.4"}, r"faults = .*: the shares flip=0.7, scale=0.4 must sum up to at most 1$"),
        (
            {"faults": "nan=0.1", "method": "fedavg", "privacy": "local-dp"},
            r"faults: need uploads .*privacy.mode is local-dp$",
        ),
        ({"faults": "backdoor=0.5,target=10"}, r"faults.target = 10: must be a class, from 0 to 9$"),
        ({"faults": "prototypes=0.1", "method": "fedavg"}, r"faults.prototypes = 0.1: fedavg compares no prototypes"),
        ({"faults": "nan=0.1", "engine": "flower"}, r"faults: are simulated by the engines sequential and batched"),
        ({"aggregation": "median", "method": "local"}, r"method local .*: every client keeps a model of its own, so"),
        (
            {"aggregation": "clip", "method": "fedavg", "engine": "flower", "privacy": "secagg"},
            r"privacy.mode = 'secagg': fedavg with aggregation clip compares single clients' models before it averages",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(settings, sentence):
    with pytest.raises(InputError, match=f"^{sentence}"):
        prepare(from_flat(**{"clients": 4, **settings}))
