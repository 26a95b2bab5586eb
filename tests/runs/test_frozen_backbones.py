"""Runs that train a part of the extractor: only this part is sent, averaged, kept and counted."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.testing import assert_close

import hcfl
from hcfl import Federation, InputError
from hcfl.config import from_flat
from hcfl.engines.stacked import can_be_batched
from hcfl.launch import execute
from hcfl.models.layers import Style
from hcfl.runs import backbone
from hcfl.runs.checkpoint import load
from hcfl.runs.prepare import prepare

AGREE = [
    ("hcfl+(fedrc)", "heads"),
    ("ifca", "heads"),
    ("fedgmm", "heads"),
    ("fedavg", "adapters"),
    ("cfl", "adapters"),
    ("fedsoft", "adapters"),
    ("hcfl++", "adapters"),
    ("fedem", "layers.1.*"),
]
"""Shared and whole models, soft and hard weights, updates and prototypes compared, own models, densities."""


class Pooled(nn.Module):
    """An extractor with batch normalisation, whose calls are counted."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        style = Style()
        self.layers = nn.Sequential(style.unit(channels, 6), style.unit(6, 6, kernel=3, depthwise=True))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layers(x).mean(dim=(1, 2))


def model(shape, classes):
    return Pooled(shape[-1]), nn.Linear(6, classes)


@pytest.fixture
def images() -> Federation:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (90, 4, 4, 3)).astype(np.uint8), np.arange(90) % 3
    x[y == 1, :2] //= 3
    client = np.arange(90) % 7 % 5
    return Federation.from_arrays(x, (y + client % 2) % 3, client=client, test=np.arange(90) % 9 == 0)


def small(**settings):
    return {"rounds": 2, "epochs": 1, "batch": 8, "serve": "last", **settings}


@pytest.mark.parametrize(("method", "train"), AGREE)
def test_engines_agree(images, tmp_path, method, train):
    runs = [
        hcfl.run(method, images, model, tmp_path / engine, engine=engine, train=train, **small())
        for engine in ("sequential", "batched")
    ]
    one, two = (run.state.server for run in runs)
    names = {"heads": 0, "adapters": 2, "layers.1.*": 5}
    assert len(one.ensemble.extractors) == names[train]
    for part in ("heads", "extractors"):
        assert_close(getattr(one.ensemble, part), getattr(two.ensemble, part), atol=1e-5, rtol=1e-4)
    assert one.members.tolist() == two.members.tolist()


def test_only_what_is_trained_is_sent_kept_and_counted(images, tmp_path):
    run = hcfl.run("fedavg", images, model, tmp_path / "run", train="adapters", lora_rank=2, **small())
    clients, adapters, head = images.clients, 2 * (3 + 6), 6 * 3 + 3
    assert run.rows[-1]["bytes_up_by_part"]["extractor"] == 4 * clients * adapters
    assert run.rows[-1]["bytes_down_by_part"]["extractor"] == 4 * clients * adapters
    assert run.rows[-1]["bytes_up_by_part"]["heads"] == 4 * clients * head
    with safe_open(tmp_path / "run" / "checkpoint" / "round-2.safetensors", "pt") as file:
        of_extractor = [name for name in file.keys() if ".extractors." in name]  # noqa: SIM118
        assert len(of_extractor) == 2
        assert all(re.search(r"parametrizations\.weight\.0\.[AB]$", name) for name in of_extractor)
    started = prepare(from_flat(**small(train="adapters", lora_rank=2)), images, model).setting.network
    assert backbone.fingerprint(run.network.frozen_part()) == backbone.fingerprint(started.frozen_part())


def test_a_frozen_extractor_sees_every_sample_once(images, tmp_path):
    runs = {}
    for rounds in (1, 4):
        run = hcfl.run(
            "ifca", images, model, tmp_path / f"{rounds}", engine="sequential", train="heads", **small(rounds=rounds)
        )
        runs[rounds] = run.network.extractor.calls
    assert runs[1] == runs[4] == 2  # all clients' samples, and the test set


def test_cached_features_change_nothing(images, tmp_path):
    prepared = prepare(from_flat(method="hcfl+(fedrc)", **small(train="heads", engine="sequential")), images, model)
    cached = execute(prepared, tmp_path / "cached").state.server
    setting = replace(prepared.setting, federation=replace(prepared.setting.federation, frozen=None))
    anew = execute(replace(prepared, setting=setting), tmp_path / "anew").state.server
    assert_close(cached.ensemble.heads, anew.ensemble.heads, atol=1e-6, rtol=1e-5)
    assert_close(cached.weights, anew.weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("train", ["heads", "adapters,*.norm.*"])
def test_loading_resuming_and_exporting(images, tmp_path, train):
    settings = small(train=train, rounds=3, engine="sequential", checkpoint_every=1)
    whole = hcfl.run("hcfl+(fedrc)", images, model, tmp_path / "whole", **settings)
    x = images.x[:7].numpy()
    expected = whole.predict_proba(x, client=2)
    loaded = hcfl.load(tmp_path / "whole", model=model, serve="last")
    np.testing.assert_allclose(loaded.predict_proba(x, client=2), expected, atol=1e-6)
    for ending in ("safetensors", "pt"):
        loaded.export(tmp_path / f"model.{ending}", client=2)  # checks the file against the run
    plain = hcfl.load_model(tmp_path / "model.safetensors", model)
    assert not any("parametrizations" in name for name in plain.state_dict())
    np.testing.assert_allclose(plain(torch.from_numpy(x)).numpy(), expected, atol=1e-5)

    prepared = prepare(from_flat(method="hcfl+(fedrc)", **settings), images, model)
    execute(prepared, tmp_path / "part", should_stop=lambda: True)
    resumed = hcfl.resume(tmp_path / "part", data=images, model=model)
    for part in ("heads", "extractors"):
        mine, theirs = (getattr(run.state.server.ensemble, part) for run in (whole, resumed))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_another_backbone_is_refused(images, tmp_path):
    pair = model((4, 4, 3), 3)
    prepared = prepare(from_flat(method="fedavg", **small(train="heads")), images, pair)
    execute(prepared, tmp_path / "run", should_stop=lambda: True)
    with torch.no_grad():
        pair[0].layers[0].conv.weight += 1
    with pytest.raises(InputError, match=r"backbone\.safetensors: is another backbone than the model has now"):
        hcfl.resume(tmp_path / "run", data=images, model=pair)
    broken = tmp_path / "run" / "checkpoint" / "backbone.safetensors"
    broken.write_bytes(broken.read_bytes()[:-8])
    with pytest.raises(InputError, match="damaged"):
        hcfl.load(tmp_path / "run", model=pair)


@pytest.mark.parametrize("aggregation", ["median", "trimmed-mean", "clip", "multi-krum"])
def test_other_averages_of_a_frozen_extractor(images, tmp_path, aggregation):
    run = hcfl.run("fedavg", images, model, tmp_path / "run", train="heads", aggregation=aggregation, **small())
    assert run.summary["rounds"] == 2


def test_noise_needs_no_other_normalisation_where_batch_normalisation_is_frozen(images, tmp_path):
    settings = small(privacy="local-dp", clip=1.0)
    with pytest.raises(InputError, match="batch normalisation"):
        hcfl.run("fedavg", images, model, tmp_path / "refused", **settings)
    run = hcfl.run("fedavg", images, model, tmp_path / "run", train="adapters", **settings)
    assert set(load(tmp_path / "run" / "checkpoint")[0].server.ensemble.extractors) == set(
        run.network.trained_part(run.network.extractor)
    )


def test_personal_parts_and_attackers_with_a_frozen_extractor(images, tmp_path):
    for train in ("heads", "adapters"):
        run = hcfl.run(
            "ifca", images, model, tmp_path / train, train=train, personal="auto", faults="backdoor=0.4", **small()
        )
        assert run.summary["val_personal_last"] is not None


def test_a_frozen_extractor_can_always_be_batched(images):
    prepared = prepare(from_flat(**small(train="heads")), images, model)
    assert prepared.config.engine == "batched"
    assert can_be_batched(prepared.setting.network, images.shape)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train": "blocks.*"}, r"training\.train = 'blocks\.\*': is no parameter of the extractor; it has layers"),
        ({"train": ""}, r"training\.train = .*at least 1 char"),
        ({"train": "adapters", "lora_rank": 0}, r"training\.lora_rank = 0: should be greater than or equal to 1"),
        ({"train": "adapters", "lora_scale": 0}, r"training\.lora_scale = 0: should be greater than 0"),
    ],
)
def test_wrong_settings_are_one_sentence(images, tmp_path, settings, said):
    with pytest.raises(InputError, match=said):
        hcfl.run("fedavg", images, model, tmp_path / "run", **settings)
