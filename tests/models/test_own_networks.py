"""Networks of users: recurrent layers, token numbers, and errors in their own code."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import hcfl
from hcfl import Federation, InputError
from hcfl.engines.stacked import can_be_batched
from hcfl.models.network import Network


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(3, 5, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0][:, -1]


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)

    def forward(self, x):
        return self.words(x).mean(dim=1)


class Broken(nn.Module):
    def forward(self, x):
        return x + torch.zeros(3, 99)


def series(generator, clients=4):
    x = generator.normal(size=(80, 6, 3)).astype(np.float32)
    return Federation.from_arrays(x, (x[:, 0, 0] > 0).astype(int), client=np.arange(80) % clients)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_recurrent_networks_train_one_client_after_another(kind, tmp_path):
    run = hcfl.run(
        "fedavg", series(np.random.default_rng(0)), (Recurrent(kind), nn.Linear(5, 2)), rounds=1, out=tmp_path / "run"
    )
    assert run.config.engine == "sequential"
    assert any("one after another" in note for note in run.federation.notes)


def test_a_dense_network_can_be_batched_and_a_recurrent_one_cannot():
    for layer in (nn.ReLU(), nn.BatchNorm1d(4), nn.Dropout(0.5)):
        assert can_be_batched(Network(nn.Sequential(nn.Linear(3, 4), layer), nn.Linear(4, 2)), (3,))
    assert not can_be_batched(Network(Recurrent(nn.GRU), nn.Linear(5, 2)), (6, 3))


def tokens(dtype=np.int32, **settings):
    x = np.random.default_rng(1).integers(0, 7, size=(60, 5)).astype(dtype)
    return x, Federation.from_arrays(x, (x[:, 0] > 3).astype(int), client=np.arange(60) % 3, scale="none", **settings)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_whole_numbers_stay_whole_numbers_in_training_and_in_use(dtype, tmp_path):
    x, federation = tokens(dtype)
    model = (Tokens(), nn.Linear(4, 2))
    runs = {
        engine: hcfl.run("fedavg", federation, model, rounds=2, engine=engine, out=tmp_path / engine)
        for engine in ("sequential", "batched")
    }
    run = runs["batched"]
    assert run.config.engine == "batched"
    np.testing.assert_allclose(run.predict_proba(x), runs["sequential"].predict_proba(x), atol=1e-5)
    loaded = hcfl.load(run.path, model=model)
    assert loaded.predict(x[:5]).tolist() == loaded.predict(x[:5].astype(float)).tolist() == run.predict(x[:5]).tolist()
    assert loaded.assign(x, (x[:, 0] > 3).astype(int)).cluster == 0
    for name in ("model.pt", "model.safetensors"):
        loaded.export(tmp_path / name)  # it compares what the file predicts with what the run does
    served = torch.jit.load(tmp_path / "model.pt")
    np.testing.assert_allclose(served(torch.from_numpy(x)).numpy(), run.predict_proba(x), atol=1e-5)


def test_fractions_are_no_token_numbers(tmp_path):
    x, federation = tokens()
    run = hcfl.run("fedavg", federation, (Tokens(), nn.Linear(4, 2)), rounds=1, out=tmp_path / "run")
    with pytest.raises(InputError, match="no whole numbers"):
        run.predict(x[:5] + 0.5)


def test_networks_that_read_floats_get_them(tmp_path):
    x, federation = tokens()
    run = hcfl.run("fedavg", federation, "mlp", rounds=1, out=tmp_path / "run")
    assert run.federation.scaling.dtype == torch.float32
    assert len(run.predict(x[:5] + 0.5)) == 5


def test_an_error_in_a_user_s_network_names_its_file_and_line(tmp_path):
    with pytest.raises(
        InputError, match=r"model: it cannot read inputs of shape .*RuntimeError.*, in .*test_own_networks.py, line 3\d"
    ):
        hcfl.run("fedavg", series(np.random.default_rng(0)), (Broken(), nn.Linear(5, 2)), out=tmp_path / "run")


class BreaksLater(nn.Module):
    """Fails in training mode, in the second round: a round has 4 clients, 5 epochs and 2 batches."""

    def __init__(self):
        super().__init__()
        self.layer, self.steps = nn.Linear(3, 4), [0]

    def forward(self, x):
        self.steps[0] += self.training
        if self.steps[0] > LAST_STEP:
            raise ValueError("the cat is on the keyboard")
        return self.layer(x[:, 0])


LAST_STEP = 60


def test_an_error_in_the_middle_of_training_names_file_and_line_and_keeps_the_run(tmp_path):
    model, path = (BreaksLater(), nn.Linear(4, 2)), tmp_path / "run"
    with pytest.raises(
        InputError, match=r"training: your code failed \(ValueError: the cat .*own_networks.py, line \d+"
    ):
        hcfl.run("fedavg", series(np.random.default_rng(0)), model, rounds=9, engine="sequential", out=path)
    assert 1 <= json.loads((path / "summary.json").read_text())["rounds"] < 9
    assert list((path / "checkpoint").glob("round-*"))


def test_an_embedding_of_scaled_inputs_is_refused_with_a_hint(tmp_path):
    x = np.random.default_rng(1).integers(0, 7, size=(60, 5))
    federation = Federation.from_arrays(x, (x[:, 0] > 3).astype(int), client=np.arange(60) % 3)
    with pytest.raises(InputError, match=r"line \d+\); token numbers need data.scale = none"):
        hcfl.run("fedavg", federation, (Tokens(), nn.Linear(4, 2)), out=tmp_path / "run")
