"""Networks of users: recurrent layers, token numbers, and errors in their own code."""

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
        return self.words(x.long()).mean(dim=1)


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


def test_token_numbers_arrive_as_they_are(tmp_path):
    generator = np.random.default_rng(1)
    x = generator.integers(0, 7, size=(60, 5)).astype(np.float32)
    federation = Federation.from_arrays(x, (x[:, 0] > 3).astype(int), client=np.arange(60) % 3, scale="none")
    assert torch.equal(federation.scaling(federation.x), torch.from_numpy(x))
    run = hcfl.run("fedavg", federation, (Tokens(), nn.Linear(4, 2)), rounds=1, out=tmp_path / "run")
    assert hcfl.load(run.path, model=(Tokens(), nn.Linear(4, 2))).predict(x[:5]).tolist() == run.predict(x[:5]).tolist()


def test_an_error_in_a_user_s_network_names_its_file_and_line(tmp_path):
    with pytest.raises(
        InputError, match=r"model: it cannot read inputs of shape .*RuntimeError.*, in .*test_own_networks.py, line 3\d"
    ):
        hcfl.run("fedavg", series(np.random.default_rng(0)), (Broken(), nn.Linear(5, 2)), out=tmp_path / "run")
