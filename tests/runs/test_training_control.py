"""Early stopping, learning rates over rounds, and clipped gradients: by hand, and the same in every engine."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import hcfl
from hcfl.config import TrainingConfig, from_flat
from hcfl.core import rounds
from hcfl.core.sgd import Decay, LocalSGD, descend
from hcfl.errors import InputError
from hcfl.launch import execute
from hcfl.runs.best_round import overdue
from hcfl.runs.prepare import prepare
from helpers import local_sgd

SMALL = {"data": "digits", "clients": 6, "samples": 240, "model": "mlp", "epochs": 1, "batch": 16}


def test_learning_rates_by_hand():
    cosine = Decay.of(TrainingConfig(schedule="cosine", rounds=4))
    assert [cosine.factor(number) for number in (1, 2, 3, 4)] == pytest.approx(
        [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    )
    step = Decay.of(TrainingConfig(schedule="step", rounds=9))
    assert [step.factor(number) for number in (1, 3, 4, 7, 9)] == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    halved = Decay.of(TrainingConfig(schedule="step", rounds=9, lr_every=2, lr_decay=0.5))
    assert [halved.factor(number) for number in (2, 3, 5)] == [1, 0.5, 0.25]
    sgd = LocalSGD.of(TrainingConfig(lr=0.2, schedule="cosine", rounds=4, batch=4, epochs=1, order="auto"))
    assert sgd.in_round(3).lr == pytest.approx(0.1)
    assert LocalSGD.of(TrainingConfig(lr=0.2, batch=4, epochs=1, order="auto")).in_round(3).lr == 0.2


def test_clipped_steps_are_torch_s():
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), 10 * torch.randn(12, 4), torch.randn(12, 3)
    sgd = replace(local_sgd(lr=0.1, momentum=0.9, weight_decay=0.01), clip_gradient=0.5)
    start = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}

    def loss(rows, params):
        return (x[rows] @ params["weight"].T + params["bias"] - y[rows]).square().mean()

    batches = [torch.arange(0, 6), torch.arange(6, 12)]
    [found] = descend([start], loss, batches, sgd)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for rows in batches:
        optimiser.zero_grad()
        (model(x[rows]) - y[rows]).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert norm > 0.5  # else nothing was clipped
        optimiser.step()
    assert_close(found, {name: tensor.detach() for name, tensor in model.named_parameters()})


@pytest.mark.parametrize("method", ["ifca", "hcfl+(fedem)"])
def test_engines_agree_and_settings_matter(method):
    more = {"schedule": "cosine", "clip_gradient": 0.3, "rounds": 3}
    ends = []
    for engine, changed in (("sequential", more), ("batched", more), ("batched", {"rounds": 3})):
        prepared = prepare(from_flat(method=method, **SMALL, engine=engine, **changed))
        *_, (after, _) = rounds.play(prepared.setting, prepared.state, 3)
        ends.append(after.server.ensemble)
    assert_close(ends[0].heads, ends[1].heads, atol=1e-5, rtol=1e-3)
    assert_close(ends[0].extractors, ends[1].extractors, atol=1e-5, rtol=1e-3)
    name = next(iter(ends[0].heads))
    assert not torch.allclose(ends[1].heads[name], ends[2].heads[name], atol=1e-3)


def test_a_run_stops_by_the_likelihood_and_goes_on_to_the_same_end(tmp_path):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 5)).astype(np.float32), draw.integers(0, 2, 60)  # nothing to learn: it overfits
    settings = {"rounds": 40, "patience": 3, "lr": 0.3, "epochs": 3, "checkpoint_every": 1}
    np.savez(tmp_path / "data.npz", x=x, y=y, client=np.arange(60) % 3)
    config = from_flat(method="fedavg", data=str(tmp_path / "data.npz"), **settings)
    run = execute(prepare(config), tmp_path / "run")
    likelihoods = [row["likelihood"] for row in run.rows]
    best = max(range(len(likelihoods)), key=likelihoods.__getitem__)
    assert len(run.rows) == best + 1 + 3 < 40
    assert run.summary["stopped_early"] is True
    assert run.summary["served_round"] == best + 1
    assert any("stopped early after round" in one for one in run.summary["warnings"])
    killed = execute(prepare(config), tmp_path / "killed", should_stop=iter([False, True]).__next__)
    assert killed.summary["stopped_early"] is False
    resumed = hcfl.resume(tmp_path / "killed")
    assert [row["likelihood"] for row in resumed.rows] == likelihoods
    notes = []
    again = hcfl.resume(tmp_path / "killed", on_note=notes.append)
    assert len(again.rows) == len(run.rows)
    assert "stopped early" in notes[0]


def test_overdue_by_hand():
    rows = [{"round": number, "likelihood": value} for number, value in enumerate([-3, -1, -2, -1.5], start=1)]
    assert not overdue(rows, 3)
    assert overdue(rows, 2)
    assert not overdue(rows, None)
    assert not overdue([*rows, {"round": 5, "likelihood": None}], 2)  # not measured in this round


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lr_every": 3}, "training.lr_every = 3: is of schedule step, but the schedule is constant"),
        ({"patience": 2, "privacy": "local-dp", "method": "fedavg"}, "training.patience = 2: with privacy local-dp"),
    ],
)
def test_settings_without_effect_are_refused(settings, told):
    with pytest.raises(InputError) as error:
        prepare(from_flat(**{"method": "ifca", **settings}))
    assert str(error.value).startswith(told)
