"""Composition by name: every pair of choices runs or is refused with its reason; a user's own tier plugs in."""

import itertools

import pytest

import hcfl
from hcfl import Federation, InputError, Method, compose
from hcfl.cli import main
from hcfl.methods import build
from hcfl.tiers import (
    Correlation,
    Fixed,
    PrototypeDistance,
    SampleWiseEM,
    SplitAndRemove,
    SplitBySpectrum,
    SplitWhenStationary,
    UpdateCosine,
)
from helpers import blobs, play


def test_a_choice_is_written_like_a_call():
    assert compose.parse("formulation", "correlation") == Correlation()
    assert compose.parse("weighting", "sample-wise-em(mu=0.25)") == SampleWiseEM(0.25)
    assert compose.parse("adaptation", " split-and-remove( rho = 0.1, scwu=false ) ") == SplitAndRemove(0.1, scwu=False)
    assert compose.parse("distance", "prototype-distance(principle=CSCP)") == PrototypeDistance("CSCP")


def test_every_choice_has_a_name():
    assert compose.names("adaptation") == ["fixed", "split-and-remove", "split-when-stationary", "split-by-spectrum"]
    assert compose.names("distance") == ["prototype-distance", "update-cosine"]


@pytest.mark.parametrize(
    ("tier", "text", "words"),
    [
        ("weighting", "soft", r"method.weighting = 'soft': must be single, .*did you mean soft-em\?"),
        ("weighting", "sample-wise-em", "missing 1 required positional argument: 'mu'"),
        ("weighting", "soft-em(mu=1)", "there is no setting mu; it has no settings"),
        ("weighting", "soft-em(hard=true)", "there is no setting hard"),
        ("adaptation", "split-and-remove(roh=1)", "there is no setting roh; its settings are rho, scwu"),
        ("adaptation", "split-and-remove(0.1)", "'0.1' must look like setting=value"),
        ("adaptation", "split-and-remove(rho=[)", "is not a value"),
        ("distance", "", "must look like NAME"),
        ("distance", "nowhere.py:Mine", "cannot be imported"),
    ],
)
def test_what_is_not_a_choice_is_refused_with_what_is(tier, text, words):
    with pytest.raises(InputError, match=words):
        compose.parse(tier, text)


def test_overriding_a_named_method_says_so_in_its_name():
    method = compose.override(build("hcfl+(fedrc)"), distance="update-cosine", weighting=None)
    assert method.distance == UpdateCosine()
    assert method.name == "hcfl+(fedrc) with distance update-cosine"
    assert method.weighting == SampleWiseEM(0.4)
    none = compose.override(build("hcfl+(fedrc)"), adaptation="fixed", distance="none")
    assert (none.adaptation, none.distance) == (Fixed(), None)
    with pytest.raises(InputError, match="needs a distance"):
        compose.override(build("hcfl+(fedrc)"), distance="none")


FORMULATIONS = ["conditional", "correlation"]
WEIGHTINGS = ["single", "assigned", "hard-by-loss", "hard-by-parameters", "soft-em", "sample-wise-em(mu=0.4)"]
ADAPTATIONS = {
    "fixed": Fixed(),
    "split-and-remove": SplitAndRemove(0.05),
    "split-when-stationary": SplitWhenStationary(10.0, 0.01),
    "split-by-spectrum": SplitBySpectrum(0.98, from_start=True),
}
DISTANCES = {
    None: None,
    "prototypes": PrototypeDistance("ASCP"),
    "own updates": UpdateCosine(),
    "whole updates": UpdateCosine(of="whole updates"),
}


@pytest.fixture(scope="module")
def tiny() -> Federation:
    x, y = blobs(classes=3, per_class=24, features=4)
    return Federation.from_arrays(x, y, clients=6, partition="iid", beta=0.9, seed=1)


@pytest.mark.parametrize("topology", ["split", "full"])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_every_composition_runs_two_rounds_or_is_refused_with_its_reason(tiny, weighting, topology):
    ran, reasons = 0, []
    for formulation, adaptation, distance in itertools.product(FORMULATIONS, ADAPTATIONS, DISTANCES):
        choices = (
            compose.parse("formulation", formulation),
            compose.parse("weighting", weighting),
            ADAPTATIONS[adaptation],
            DISTANCES[distance],
            topology,
            1,
        )
        try:
            method = Method("mine", *choices)
        except InputError as error:
            reasons.append(str(error))
            continue
        _, records = play(tiny, method, 2, participation=0.9)
        assert len(records) == 2
        ran += 1
    assert ran + len(reasons) == 32
    assert all(reason.startswith("method mine: ") for reason in reasons)
    expected = {"single": 2, "assigned": 18 if topology == "split" else 12}
    assert ran == expected.get(weighting, 20 if topology == "split" else 14)


OWN = '''
from dataclasses import dataclass
import torch

@dataclass(frozen=True)
class LabelDistance:
    """Clients that hold other labels are far apart."""
    scale: float = 1.0
    needs: str = "prototypes"

    def between(self, participants):
        counts = participants.prototypes.class_counts
        shares = counts / counts.sum(dim=1, keepdim=True)
        return self.scale * torch.cdist(shares, shares, p=1) / 2
'''


def test_a_user_s_own_tier_plugs_in_by_import_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    arguments = ["--distance", "mine.py:LabelDistance(scale=3)", "--clients", "4", "--rounds", "2", "--alpha", "0.3"]
    assert main(["run", "hcfl+(fedem)", *arguments, "--out", "o"]) == 0
    config = hcfl.Config.load(tmp_path / "o" / "config.yaml")
    assert config.method.distance == "mine.py:LabelDistance(scale=3)"
    assert "with distance mine.py:LabelDistance(scale=3)" in (tmp_path / "o" / "summary.json").read_text()


def test_a_file_that_raises_is_reported_in_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text("1 / 0")
    assert main(["run", "hcfl+(fedem)", "--distance", "bad.py:X"]) == 2
    assert "cannot be imported (ZeroDivisionError: division by zero)" in capsys.readouterr().err
