"""Comparisons of Python objects, and of methods with settings of their own."""

import pytest
from torch import nn

import hcfl
from hcfl.cli import main
from hcfl.methods import build
from hcfl.studies.comparison import with_settings


def test_a_method_on_the_command_line_may_have_settings_of_its_own():
    assert with_settings("ifca(clusters=2)") == ("ifca", {"clusters": "2"})
    assert with_settings("hcfl+(fedrc)(rho=0.1, warm-up=2)") == ("hcfl+(fedrc)", {"rho": "0.1", "warm_up": "2"})
    assert with_settings("hcfl+(fedrc)") == ("hcfl+(fedrc)", {})


def test_a_setting_that_does_not_exist_is_refused(capsys):
    assert main(["compare", "ifca(size=2)"]) == 2
    assert "METHOD ifca(size=2): there is no setting size" in capsys.readouterr().err


def test_a_federation_a_model_and_a_method_are_compared(planted, tmp_path):
    model = (nn.Sequential(nn.Linear(8, 6), nn.ReLU()), nn.Linear(6, planted.classes))
    found = hcfl.compare(["fedavg", build("ifca", clusters=2)], planted, model, seeds=2, rounds=1, out=tmp_path)
    assert found.table["seeds"].tolist() == [2, 2]
    assert [run.config.seed for run in found.runs["ifca"]] == [0, 1]
    assert found.runs["ifca"][0].clusters == (0, 1)
    assert len(found.runs["fedavg"][0].predict(planted.x[:3].numpy(), client=0)) == 3


def test_settings_by_method(planted, tmp_path):
    found = hcfl.compare({"ifca": {"clusters": 4}, "fedavg": {}}, planted, rounds=1, out=tmp_path)
    assert found.runs["ifca"][0].config.method.clusters == 4


def test_what_is_offered_is_completed():
    assert {"run", "resume", "compare", "load"} <= set(dir(hcfl))


def test_a_run_goes_on_from_python(planted, tmp_path):
    def stop(record):
        if record.round == 1:
            raise KeyboardInterrupt

    model = (nn.Sequential(nn.Linear(8, 6), nn.ReLU()), nn.Linear(6, planted.classes))
    with pytest.raises(KeyboardInterrupt):
        hcfl.run("fedavg", planted, model, rounds=2, on_round=stop, out=tmp_path / "run")
    with pytest.raises(hcfl.InputError, match="has to be passed again"):
        hcfl.resume(str(tmp_path / "run"), data=planted)
    run = hcfl.resume(tmp_path / "run", data=planted, model=model)
    assert [row["round"] for row in run.rows] == [1, 2]


def test_several_newcomers_are_assigned_at_once(planted, tmp_path):
    run = hcfl.run("fedem", planted, rounds=1, out=tmp_path / "run")
    x, y = planted.x[:30].numpy(), planted.y[:30].numpy()
    found = run.assign_each(x, [0] * 10 + [1] * 20, y)
    assert {name: each.samples for name, each in found.items()} == {0: 10, 1: 20}
    assert found[1].weights == run.assign(x[10:], y[10:]).weights
    with pytest.raises(hcfl.InputError, match=r"client: has shape \(3,\), but there are 30 samples"):
        run.assign_each(x, [0, 1, 2], y)
