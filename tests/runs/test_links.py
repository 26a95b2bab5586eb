"""A run folder may be a stranger's: nothing is written through a link in it."""

import shutil

import pytest

import hcfl
from hcfl.cli import main
from hcfl.config import Config
from hcfl.errors import InputError
from hcfl.report import plots
from hcfl.runs import atomic_file
from hcfl.runs import folder as run_folder

SECRET = "mine"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("links") / "run"
    hcfl.run("fedavg", clients=3, rounds=2, out=path)
    return path


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "target"
    path.write_text(SECRET)
    return path


def test_a_report_is_not_written_through_a_link(run, target, capsys):
    (run / "report.html").symlink_to(target)
    assert main(["report", str(run)]) == 2
    assert "report.html: is a link that leads out of the run folder; remove it" in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(run / "report.html")]) == 2
    assert target.read_text() == SECRET
    (run / "report.html").unlink()
    (run / "report.html").symlink_to("summary.json")  # inside: the link is replaced, its target stays
    summary = (run / "summary.json").read_text()
    assert main(["report", str(run)]) == 0
    assert not (run / "report.html").is_symlink()
    assert (run / "summary.json").read_text() == summary


def test_a_report_is_not_written_through_a_link_with_a_temporary_name(run, target):
    (run / f"report.html{atomic_file.UNFINISHED}").symlink_to(target)
    assert main(["report", str(run)]) == 0
    assert target.read_text() == SECRET
    assert not (run / "report.html").is_symlink()


def test_a_report_is_not_written_into_a_linked_folder(run, tmp_path, capsys):
    (tmp_path / "outside").mkdir()
    (run / "pages").symlink_to(tmp_path / "outside")
    assert main(["report", str(run), "--out", str(run / "pages" / "a.html")]) == 2
    assert "pages: is a link that leads out of the run folder" in capsys.readouterr().err
    assert not list((tmp_path / "outside").iterdir())


def test_a_run_folder_that_is_itself_a_link_is_fine(run, tmp_path):
    (tmp_path / "short").symlink_to(run)
    assert main(["report", str(tmp_path / "short")]) == 0
    assert (run / "report.html").exists()


@pytest.mark.parametrize("name", ["run.png", ".lock", "metrics.jsonl", "summary.json", "checkpoint/round-2.x"])
def test_a_run_is_not_resumed_through_links(name, run, target, capsys):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    assert main(["resume", str(run)]) == 2
    assert f"{name}: is a link that leads out of the run folder" in capsys.readouterr().err
    assert target.read_text() == SECRET


def test_checkpoints_are_not_written_into_a_linked_folder(run, tmp_path, capsys):
    (run / "checkpoint").rename(tmp_path / "outside")
    (run / "checkpoint").symlink_to(tmp_path / "outside")
    assert main(["resume", str(run)]) == 2
    assert "checkpoint: is a link that leads out of the run folder" in capsys.readouterr().err


def test_a_model_is_not_written_through_a_link(run, target, capsys):
    (run / "cluster-0.safetensors").symlink_to(target)
    assert main(["export", str(run), "--format", "safetensors"]) == 2
    assert "cluster-0.safetensors: is a link that leads out" in capsys.readouterr().err
    assert target.read_text() == SECRET


def test_pictures_replace_links(whole, target, tmp_path):
    (tmp_path / "a.png").symlink_to(target)
    plots.save(hcfl.load(whole).plot_accuracy(), tmp_path / "a.png")
    assert target.read_text() == SECRET
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", run_folder.LOGS)
def test_a_new_run_is_not_written_through_a_link_to_nothing(name, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "new")
    with pytest.raises(InputError, match="already holds a run"):
        run_folder.create(tmp_path / "run", Config())
    assert not (tmp_path / "new").exists()
