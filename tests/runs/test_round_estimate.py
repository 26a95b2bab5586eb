"""How long a round takes, said before it starts."""

from hcfl.config import from_flat
from hcfl.launch import execute
from hcfl.runs import round_estimate
from hcfl.runs.prepare import prepare

SMALL = {"method": "hcfl+(fedrc)", "clients": 6, "samples": 150, "rounds": 1}


def test_a_round_of_many_clients_is_estimated_and_the_run_stays_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(round_estimate, "MANY", 4)
    monkeypatch.setattr(round_estimate, "TRIED", 2)
    prepared = prepare(from_flat(**SMALL))
    assert round_estimate.estimate(prepared) > 0
    monkeypatch.setattr(round_estimate, "LONG", 0.0)
    assert round_estimate.sentence(prepared).startswith("a round takes about ")
    tried, plain = execute(prepared, tmp_path / "tried"), execute(prepare(from_flat(**SMALL)), tmp_path / "plain")
    assert tried.rows[0]["val"] == plain.rows[0]["val"]
    assert tried.rows[0]["objective"] == plain.rows[0]["objective"]


def test_short_rounds_are_not():
    assert round_estimate.sentence(prepare(from_flat(**SMALL))) is None
