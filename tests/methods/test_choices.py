"""Composition by name: every pair of choices runs or is refused with its reason; a user's own tier plugs in."""

import re
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import hcfl
from hcfl import Federation, InputError, Method
from hcfl.cli import main
from hcfl.methods import build
from hcfl.methods import choices as tier_choices
from hcfl.methods.compositions import PART, page, pairs
from hcfl.tiers import (
    Correlation,
    Fixed,
    HierarchicalOnce,
    MergeSimilar,
    PrototypeDistance,
    SampleWiseEM,
    SplitAndRemove,
    SplitBySpectrum,
    SplitWhenStationary,
    UpdateCosine,
)
from helpers import blobs, play


def test_a_choice_is_written_like_a_call():
    assert tier_choices.parse("formulation", "correlation") == Correlation()
    assert tier_choices.parse("weighting", "sample-wise-em(mu=0.25)") == SampleWiseEM(0.25)
    assert tier_choices.parse("adaptation", " split-and-remove( rho = 0.1, scwu=false ) ") == SplitAndRemove(
        0.1, scwu=False
    )
    assert tier_choices.parse("distance", "prototype-distance(principle=CSCP)") == PrototypeDistance("CSCP")


def test_every_choice_has_a_name():
    assert tier_choices.names("formulation") == ["conditional", "correlation", "joint"]
    assert tier_choices.names("adaptation")[:3] == ["fixed", "split-and-remove", "split-on-contradiction"]
    assert tier_choices.names("local") == ["cluster-models", "own-model", "own-head"]


@pytest.mark.parametrize(
    ("tier", "text", "words"),
    [
        ("weighting", "soft", r"method.weighting = 'soft': must be single, .*did you mean soft-em\?"),
        ("weighting", "sample-wise-em", "sample-wise-em needs mu"),
        ("weighting", "soft-counts(period=1.5)", "period = 1.5: should be a valid integer"),
        ("weighting", "soft-counts(period=0)", "period = 0: must be at least 1"),
        ("adaptation", "merge-similar(tau=abc)", "tau = 'abc': should be a valid number"),
        ("adaptation", "merge-similar(tau=5)", "tau = 5.0: must lie between -1 and 1"),
        ("adaptation", "split-by-spectrum(alpha0=1)", "alpha0 = 1.0: must lie between 0 and 1"),
        ("adaptation", "split-when-stationary(tol1=0)", "tol1 = 0.0: must be greater than 0"),
        ("adaptation", "hierarchical-once", "hierarchical-once needs threshold"),
        ("formulation", "correlation(floor=-1)", "floor = -1.0: must be greater than 0"),
        ("formulation", "conditional(gaussians=2)", "there is no setting gaussians"),
        ("formulation", "joint(gaussians=2.5)", "gaussians = 2.5: should be a valid integer"),
        ("distance", "update-cosine(of=gradients)", "of = 'gradients': should be 'updates', 'whole updates', 'first"),
        ("local", "own-model(kept=maybe)", "kept = 'maybe': should be a valid boolean"),
        ("local", "cluster-models(kept=true)", "there is no setting kept"),
        ("adaptation", "fixed(uses_distance=true)", "there is no setting uses_distance; it has no settings"),
        (
            "local",
            "own-model(uses_global_model=true)",
            "no setting uses_global_model; its settings are kept, proximal",
        ),
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
        tier_choices.parse(tier, text)


def test_overriding_a_named_method_says_so_in_its_name():
    method = tier_choices.override(build("hcfl+(fedrc)"), distance="update-cosine", weighting=None)
    assert method.distance == UpdateCosine()
    assert method.name == "hcfl+(fedrc) with distance update-cosine"
    assert method.weighting == SampleWiseEM(0.4)
    none = tier_choices.override(build("hcfl+(fedrc)"), adaptation="fixed", distance="none")
    assert (none.adaptation, none.distance) == (Fixed(), None)
    with pytest.raises(InputError, match="needs a distance"):
        tier_choices.override(build("hcfl+(fedrc)"), distance="none")


@pytest.fixture(scope="module")
def tiny() -> Federation:
    x, y = blobs(classes=3, per_class=24, features=4)
    return Federation.from_arrays(x, y, clients=6, partition="iid", beta=0.9, seed=1)


EAGER = {
    SplitAndRemove: SplitAndRemove(0.05),
    SplitWhenStationary: SplitWhenStationary(10.0, 0.01),
    SplitBySpectrum: SplitBySpectrum(0.98, from_start=True),
    MergeSimilar: MergeSimilar(-1.0),
    HierarchicalOnce: HierarchicalOnce(1e-6),
}
"""Settings with which something happens in two rounds."""


def drawn(generator, **fixed):
    """Return a method of random choices and these, or None where they do not compose."""
    choices = {part: list(PART[part].values())[generator.integers(len(PART[part]))] for part in PART} | fixed
    choices["adaptation"] = EAGER.get(type(choices["adaptation"]), choices["adaptation"])
    try:
        return Method(**choices)
    except InputError:
        return None


def pairs_of(method):
    """Return all pairs of choices that a method has."""
    names = {part: next(n for n, c in PART[part].items() if same_choice(c, getattr(method, part))) for part in PART}
    return {((one, two), (names[one], names[two])) for one, two in combinations(PART, 2)}


def same_choice(named, chosen):
    return EAGER.get(type(named), named) == EAGER.get(type(chosen), chosen)


@cache
def every_pair():
    """Return methods that have, between them, every pair of choices that composes: a method has 21 of them."""
    generator, methods = np.random.default_rng(0), []
    left = {(pair.parts, pair.names): pair.method for pair in pairs() if pair.method is not None}
    while left:
        (parts, names), composed = next(iter(left.items()))
        fixed = {part: PART[part][name] for part, name in zip(parts, names, strict=True)}
        eager = replace(composed, adaptation=EAGER.get(type(composed.adaptation), composed.adaptation))
        candidates = [eager, *filter(None, (drawn(generator, **fixed) for _ in range(20)))]
        methods.append(max(candidates, key=lambda method: len(pairs_of(method) & left.keys())))
        for pair in pairs_of(methods[-1]):
            left.pop(pair, None)
    return methods


CHUNKS = 6
"""As many tests, so that they can run side by side."""


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_method_of_every_pair_of_choices_runs_two_rounds(tiny, chunk):
    changes = 0
    for method in every_pair()[chunk::CHUNKS]:
        state, records = play(tiny, method, 2, participation=0.9)
        assert [record.missing for record in records] == [(), ()], "nobody honest is refused"
        assert_close(state.server.weights.sum(dim=1), torch.ones(6))
        changes += sum(len(record.changes) for record in records)
    assert changes


def test_every_pair_is_in_a_method_that_runs_or_is_refused_with_its_reason():
    run = set().union(*map(pairs_of, every_pair()))
    for pair in pairs():
        assert (pair.method is not None) == ((pair.parts, pair.names) in run)
        assert pair.method is not None or pair.reason


def test_whole_methods_drawn_at_random_run_two_rounds(tiny):
    generator, ran = np.random.default_rng(0), 0
    while ran < 25:
        method = drawn(generator)
        if method is None:
            continue
        state, _ = play(tiny, method, 2, participation=0.6, seed=ran)
        assert_close(state.server.weights.sum(dim=1), torch.ones(6))
        assert state.server.ensemble.clusters == len(state.server.clusters)
        ran += 1


def test_what_does_not_compose_is_refused_with_the_reason_that_the_table_gives():
    refused = [pair for pair in pairs() if pair.method is None]
    assert len(refused) > 50
    for pair in refused:
        (one, two), fixed = pair.parts, dict(zip(pair.parts, pair.names, strict=True))
        for part in PART:
            fixed.setdefault(part, next(iter(PART[part])))
        with pytest.raises(InputError, match=r"method custom: .+"):
            Method(**{part: PART[part][name] for part, name in fixed.items()})
        assert {one, two} != {"formulation", "weighting"}, "tiers 1 and 2 always compose"


def test_the_page_of_compositions_is_what_the_code_says():
    path = Path(__file__).parents[2] / "docs" / "compositions.md"
    assert path.read_text(encoding="utf-8") == page(), "run: hcfl methods --compositions > docs/compositions.md"


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
    said = capsys.readouterr().err
    assert "cannot be imported (ZeroDivisionError: division by zero, in " in said
    assert "bad.py, line 1)" in said


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("class Mine:\n    needs = 'models'", "has no between; it needs between, needs"),
        ("class Mine:\n    def between(self, participants): ...", "has no needs; it needs between, needs"),
        (
            "class Mine:\n    needs = 'models'\n    def between(self): ...",
            r"its between cannot be called as between\(participants\)",
        ),
        ("class Mine:\n    def __init__(self): raise RuntimeError('no luck')", "no luck"),
    ],
)
def test_a_user_s_own_tier_that_lacks_something_is_told_what(tmp_path, monkeypatch, capsys, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half.py").write_text(code)
    assert main(["run", "hcfl+(fedem)", "--distance", "half.py:Mine", "--rounds", "1"]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error), error
    assert error.count("\n") == 1
