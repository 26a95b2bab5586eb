"""`hcfl theory`: what it shows, what it leaves behind, and what it refuses."""

import csv
import json

import pytest

from hcfl.cli import main
from hcfl.theory.study import study

FAST = ["--dimension", "8", "--latent", "2", "--clusters", "2", "--samples", "20", "--steps", "40", "--seeds", "2"]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_it_shows_a_table_and_leaves_a_picture_and_the_numbers(tmp_path, capsys):
    assert main(["theory", *FAST, "--imbalances", "1", "0.2", "--seed", "3", "--out", "here"]) == 0
    shown = capsys.readouterr().out
    expected = study(
        dimension=8, latent=2, clusters=2, samples=20, steps=40, seeds=2, imbalances=(1, 0.2), seed=3
    ).summaries
    for row in expected:
        assert f"{row.rate:.3f} ± {row.rate_std:.3f}" in shown
        assert f"{row.floor:.1e}" in shown
    assert f"{expected[0].bound_rate:.3f}" in shown
    assert "0 of 80" in shown
    assert "min/max 0.20: the bound says nothing: it does not contract" in shown
    assert "no verdict" in shown
    assert "4/4 min/max 0.20  seed 4" in shown
    assert (tmp_path / "here" / "theory.png").read_bytes()[:4] == b"\x89PNG"
    content = json.loads((tmp_path / "here" / "theory.json").read_text(encoding="utf-8"))
    assert content["settings"]["imbalances"] == [1, 0.2]
    assert [row["rate"] for row in content["table"]] == [row.rate for row in expected]
    assert content["table"][1]["bound_rate"] is None
    with (tmp_path / "here" / "theory.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 41
    assert float(rows[0]["distance"]) == pytest.approx(0.5)
    assert float(rows[1]["bound"]) < 0.5
    assert rows[-1]["bound"] == ""


def test_what_the_bound_cannot_say_and_curves_that_fall_still_are_marked(capsys):
    assert main(["theory", *FAST, "--imbalances", "1", "--sigma", "0", "--eta", "0.2"]) == 0
    shown = capsys.readouterr().out
    assert "< " in shown
    assert "still falling after the last step" in shown
    assert "Picture: runs/theory/theory.png" in shown
    # Steps so long that nothing converges and the bound is undefined: still a table and a picture.
    assert main(["theory", *FAST, "--imbalances", "1", "--eta", "900"]) == 0
    assert "c_max = 675.00 is not below 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--steps", "many"], "steps = 'many': should be a valid integer"),
        (["--eta", "-1"], "eta = '-1': should be greater than 0"),
        (["--sigma", "nan"], "sigma = 'nan': should be a finite number"),
        (["--imbalances", "1", "x"], "imbalances.1 = 'x': should be a valid number"),
        (["--imbalances", "0"], "imbalances = 0: must be above 0 and at most 1"),
        (["--imbalances", "0.001"], "imbalances = 0.001: leaves a cluster with 0 clients"),
        (["--clusters", "1"], "clusters = 1: must be at least latent = 4"),
        (["--out", "file/below"], "out = 'file/below': cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(flags, words, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["theory", *flags]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"hcfl: {words}")
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
