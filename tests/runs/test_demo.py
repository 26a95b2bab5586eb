"""What `make demo` promises: groups found and not given, where a single model fails."""

import hcfl
from hcfl.cli import main


def test_hcfl_plus_finds_the_groups_of_the_default_federation(tmp_path):
    # Class prototypes of a client with four samples a class are noisy, and about one seed in twelve peels a client off.
    settings = {"rounds": 15, "evaluate_every": 15}
    found = [hcfl.run("hcfl+(fedrc)", seed=seed, out=tmp_path / str(seed), **settings).summary for seed in (0, 1, 2)]
    fedavg = hcfl.run("fedavg", out=tmp_path / "fedavg", **settings).summary
    good = [
        summary
        for summary in found
        if summary["clusters_last"] == 3
        and summary["ari_last"] >= 0.9
        and summary["test_last"] >= fedavg["test_last"] + 0.10
    ]
    assert len(good) >= 2, found


def test_the_demo_shows_both_runs_and_says_where_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--rounds", "2"]) == 0
    shown = capsys.readouterr().out
    picture = "Picture: runs/digits-hcfl+(fedrc)-seed0/run.png"
    for words in ("hcfl+(fedrc)", "fedavg", "clusters with clients (true)", picture):
        assert words in shown
    report = "runs/digits-hcfl+(fedrc)-seed0/report.html"
    assert shown.splitlines()[-1] == f"Report, for a browser: {report}"
    assert "fedavg" in (tmp_path / report).read_text()
    for method in ("hcfl+(fedrc)", "fedavg"):
        assert (tmp_path / "runs" / f"digits-{method}-seed0" / "summary.json").exists()
