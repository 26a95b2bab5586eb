"""A run is opened from its folder, and is the run that ended."""

import numpy as np
import pytest
import torch
from torch import nn

import hcfl
from hcfl import Federation, InputError
from hcfl.launch import resume
from hcfl.methods import METHODS
from helpers import blobs, same


@pytest.mark.parametrize("method", METHODS)
def test_what_is_opened_predicts_as_what_ended(method, planted, tmp_path):
    run = hcfl.run(method, planted, "mlp", rounds=1, out=tmp_path / "run")
    opened = hcfl.load(tmp_path / "run")
    assert not len(opened.federation.x), "no data are needed"
    assert (opened.summary, opened.rows, opened.method) == (run.summary, run.rows, run.method)
    same(opened.state.server.ensemble.heads, run.state.server.ensemble.heads)
    x, y = planted.x[:40].numpy(), planted.y[:40].numpy()
    for whose in ({"client": 3}, {"cluster": run.clusters[-1]}):
        assert np.array_equal(opened.predict_proba(x, **whose), run.predict_proba(x, **whose))
    found, again = opened.assign(x, y), run.assign(x, y)
    assert (found.weights, found.accuracy) == (again.weights, again.accuracy)
    assert opened.assign(x).note == run.assign(x).note


def test_val_is_what_clients_predict(planted, tmp_path):
    for method in ("hcfl+(fedrc)", "fedsoft", "fedgmm", "cfl"):
        run = hcfl.run(method, planted, "mlp", rounds=3, serve="last", out=tmp_path / method)
        right = [
            run.predict(planted.x[rows].numpy(), client=client) == planted.y[rows].numpy()
            for client, rows in enumerate(planted.val)
        ]
        assert np.concatenate(right).mean() == pytest.approx(run.summary["val_last"])


def test_names_come_back_as_they_were(tmp_path):
    x, y = blobs(per_class=30)
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    federation = Federation.from_arrays(x, names, client=np.array(["a", "b"])[y % 2], concept=y % 2)
    hcfl.run("hcfl+(fedem)", federation, rounds=3, out=tmp_path / "run")
    run = hcfl.load(tmp_path / "run")
    assert run.federation.client_names == ("a", "b")
    assert run.federation.truth.concept.tolist() == [0, 1]
    found = run.assign(x[:60], names[:60])
    assert set(run.predict(x, weights=found)) <= set(names)
    assert run.predict(x[:3], weights=found.weights).tolist() == run.predict(x[:3], weights=found).tolist()
    assert run.plot_weights()._repr_png_()[:4] == b"\x89PNG"


def test_a_model_from_python_has_to_be_passed_again(planted, tmp_path):
    pair = (nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6)), nn.Linear(6, planted.classes))
    run = hcfl.run("fedavg", planted, pair, rounds=2, out=tmp_path / "run")
    with pytest.raises(InputError, match="has to be passed again"):
        hcfl.load(tmp_path / "run")
    x = planted.x[:9].numpy()
    assert np.array_equal(hcfl.load(tmp_path / "run", model=pair).predict(x), run.predict(x))
    with pytest.raises(InputError, match=r"its weights do not fit the model, first at 0\.bias"):
        hcfl.load(tmp_path / "run", model=(nn.Sequential(nn.Linear(8, 7), nn.BatchNorm1d(7)), nn.Linear(7, 4)))


def test_an_interrupted_run_opens_too(planted, tmp_path):
    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hcfl.run("hcfl+(fedem)", planted, "mlp", rounds=9, out=tmp_path / "run", on_round=stop)
    run = hcfl.load(tmp_path / "run")
    found = run.assign(planted.x[:9].numpy())
    assert found.evidence == "confidence"
    assert run.profiles is None
    assert len(run.clusters) == 1 or "is not known" in found.note


def test_metrics_are_a_table(planted, tmp_path):
    run = hcfl.run("fedavg", planted, "mlp", rounds=3, out=tmp_path / "run")
    assert run.metrics.index.tolist() == [1, 2, 3]
    assert run.metrics["val"].tolist() == [row["val"] for row in run.rows]
    for picture in (run.plot_accuracy(), run.plot_clusters(), run.plot_weights()):
        assert picture._repr_png_()[:4] == b"\x89PNG"


def test_who_predicts_must_be_said_and_must_be_there(planted, tmp_path):
    run = hcfl.run("fedem", planted, "mlp", rounds=1, out=tmp_path / "run")
    x = planted.x[:2].numpy()
    with pytest.raises(InputError, match=r"one of client, cluster \(0, 1, 2\) and weights must be given"):
        run.predict(x)
    with pytest.raises(InputError, match="client and cluster: one of"):
        run.predict(x, client=1, cluster=1)
    with pytest.raises(InputError, match="cluster = 7: is not one of this run's clusters 0, 1, 2"):
        run.predict(x, cluster=7)
    with pytest.raises(InputError, match="client = 99: is not one of this run's 12 clients 0, 1, 2"):
        run.predict(x, client=99)
    with pytest.raises(InputError, match="weights: 9 is not one of"):
        run.predict(x, weights={9: 1})
    with pytest.raises(InputError, match=r"weights = \[1.0, 2.0\]: must be a number from 0 on for each"):
        run.predict(x, weights=[1, 2])
    mixed = run.predict_proba(x, weights=[1, 1, 2])
    each = torch.stack([torch.from_numpy(run.predict_proba(x, cluster=k)) for k in range(3)])
    assert mixed == pytest.approx((torch.tensor([0.25, 0.25, 0.5])[:, None, None] * each).sum(dim=0).numpy(), abs=1e-6)
    with pytest.raises(InputError, match="is not the folder of a run that ended"):
        hcfl.load(tmp_path)


def test_a_run_of_before_there_were_newcomers_ends_anew(planted, tmp_path):
    run = hcfl.run("fedavg", rounds=1, clients=3, out=tmp_path / "run")
    (run.path / "checkpoint" / "newcomers.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no newcomers.safetensors yet; `hcfl resume` ends the run"):
        hcfl.load(run.path)
    resume(run.path)
    assert hcfl.load(run.path).rows == run.rows
