"""Which engine a run takes where the user leaves it open: a rule, which a short trial overrules by a clear margin."""

import pytest
import torch
from torch import nn

from hcfl.config import Config, from_flat
from hcfl.core import rounds
from hcfl.runs import engine_trial
from hcfl.runs.engine_choice import plain_engine
from hcfl.runs.engine_trial import Way, ways
from hcfl.runs.prepare import prepare
from values import same


@pytest.fixture
def seconds(monkeypatch, tmp_path):
    """Let a trial find given times, by way, with an empty cache; the trials that took place are listed."""
    monkeypatch.setenv("HCFL_CACHE", str(tmp_path))
    trials, found = [], {}

    def measured(engines, tried, setting, state):
        trials.append(tried)
        return [found[way] for way in tried]

    monkeypatch.setattr(engine_trial, "measured", measured)
    return trials, found


def test_what_the_user_sets_is_not_tried():
    torch.set_num_threads(4)
    one, all_, in_turn = Way("batched", 1), Way("batched", 4), Way("sequential", 4)
    assert ways(Config(), one) == [one, in_turn]
    assert ways(Config(), all_) == [all_, in_turn, one]
    assert ways(Config(), in_turn) == [in_turn, one]
    assert ways(Config(engine="batched"), all_) == [all_, one]
    assert ways(Config(engine="sequential"), in_turn) == [in_turn]
    assert ways(Config(engine="batched", threads=3), Way("batched", 3)) == [Way("batched", 3)]


@pytest.mark.parametrize(("sequential", "chosen"), [(0.67, "batched"), (0.66, "sequential"), (5.0, "batched")])
def test_the_rule_is_overruled_by_a_clear_margin_only_and_the_trial_is_kept(planted, seconds, sequential, chosen):
    trials, found = seconds
    found |= {Way("batched", 1): 1.0, Way("sequential", 1): sequential}
    for seed in (0, 1):
        prepared = prepare(from_flat(method="fedavg", batch=16, seed=seed), planted)
        assert prepared.config.engine == chosen
        assert type(prepared.setting.engine).__name__.lower() == chosen
        told = [note for note in prepared.setting.federation.notes if "trial" in note]
        assert told == (
            ["the engine is sequential with 1 thread: in a trial it was 1.5 times as fast as batched with 1 thread"]
            if chosen == "sequential"
            else []
        )
    assert len(trials) == 1, "another seed uses the trial that was kept"
    prepare(prepared.config, planted)  # as a run that is resumed: its configuration says the engine
    assert len(trials) == 1
    prepare(from_flat(method="fedavg", batch=8), planted)
    assert len(trials) == 2, "another batch is other work"


def test_a_trial_changes_no_result(planted, monkeypatch, tmp_path):
    monkeypatch.setenv("HCFL_CACHE", str(tmp_path))
    tried = prepare(from_flat(method="hcfl+(fedrc)", rounds=2), planted)
    assert list(tmp_path.glob("engine-*")), "a trial took place"
    given = prepare(from_flat(method="hcfl+(fedrc)", rounds=2, engine=tried.config.engine, threads=1), planted)
    one, two = ([state for state, _ in rounds.play(p.setting, p.state, 2)][-1] for p in (tried, given))
    assert same(one.server.ensemble, two.server.ensemble)
    assert same(one.server.weights, two.server.weights)


class LooksAtValues(nn.Module):
    """A layer that torch cannot batch over clients: what it does depends on a value."""

    def forward(self, x):
        return x if x.sum().item() > 0 else -x


def test_a_way_that_fails_is_never_the_fastest_and_long_steps_are_not_tried(planted, monkeypatch):
    width = planted.shape[0]
    model = nn.Sequential(nn.Linear(width, 4), LooksAtValues()), nn.Linear(4, planted.classes)
    prepared = prepare(from_flat(method="fedavg", engine="sequential", threads=1), planted, model)
    both = [Way("sequential", 1), Way("batched", 1)]
    engines = [plain_engine(prepared.config.model_copy(update={"engine": way.engine})) for way in both]

    def measured():
        return engine_trial.measured(engines, both, prepared.setting, prepared.state)

    one, other = measured()
    assert 0 < one < other == float("inf")
    monkeypatch.setattr(engine_trial, "SHORT", 0.0)
    assert measured() == [1.0, 1.0]
