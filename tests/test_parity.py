"""hcfl against the loops of experiments/parity, which are written by hand: the same models on a tiny federation."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent / "experiments" / "parity"
TINY = {"clients": 9, "samples": 300, "rounds": 4, "batch": 16, "epochs": 1, "alpha": 1.0, "lr": 0.1}
EAGER = {"tol1": 5.0, "tol2": 0.01}
"""Tolerances with which CFL splits in every round."""


@pytest.fixture(scope="module")
def parity():
    sys.path.insert(0, str(HERE))
    import compare

    yield compare
    sys.path.remove(str(HERE))
    for name in ("compare", "reference"):
        del sys.modules[name]


def cases(parity):
    loops = parity.reference
    return {
        **parity.CASES,
        "cfl": parity.Case("cfl", loops.cfl(**EAGER), EAGER),
        "cfl, lost ids": parity.Case("cfl", loops.cfl_lost_ids(**EAGER), {**EAGER, "lost_ids": True}),
    }


NAMES = ["fedavg", "ifca", "fedem", "fedrc", "fesem", "fesem, independent start", "cfl", "cfl, lost ids"]


@pytest.mark.parametrize(
    ("name", "keep_momentum"), [*((name, False) for name in NAMES), ("ifca", True), ("fedem", True)]
)
def test_the_models_are_those_of_a_loop_written_by_hand(parity, name, keep_momentum):
    outcome = parity.compare(cases(parity)[name], keep_momentum=keep_momentum, **TINY)
    assert max(outcome.differences) < 1e-12
    assert max(outcome.weight_differences) < 1e-12
    assert all(outcome.partitions)
    assert outcome.val[0] == outcome.val[1]
    assert outcome.clusters[0] == outcome.clusters[1]
    assert outcome.moved > 0.01, "nothing was learnt, so nothing was compared"
    if name.startswith("cfl"):
        assert outcome.clusters[0] > 2, "nothing was split"


def test_in_single_precision_they_differ_by_rounding_only(parity):
    outcome = parity.compare(parity.CASES["fedrc"], double=False, **TINY)
    assert max(outcome.differences) < 1e-5


def test_another_learning_rate_is_seen(parity):
    case = parity.CASES["fedem"]

    def slower(problem):
        problem.lr *= 1.001
        return case.loop(problem)

    outcome = parity.compare(parity.Case(case.method, slower), **TINY)
    assert outcome.differences[0] > 1e-6
