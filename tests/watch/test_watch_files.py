"""Reading of files that others write: nothing outside of the folder, nothing but regular files, never too much."""

import json
import os

import pytest

from hcfl.watch import files, finding
from hcfl.watch.files import Place, Tail


class Rows(list):
    """A sink that keeps everything."""

    add = list.append


@pytest.fixture
def place(tmp_path):
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "runs" / "a").mkdir(parents=True)
    return Place(tmp_path / "runs", ("a",))


def write_run(folder):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    (folder / "metrics.jsonl").write_text("")


def line(number, **more):
    return json.dumps({"round": number, **more}) + "\n"


@pytest.mark.parametrize("name", ["../outside.txt", "..", ".", "", "/etc/passwd", "a/b", "x\0", "missing"])
def test_names_that_lead_elsewhere_are_refused(place, name):
    with pytest.raises((OSError, ValueError)):
        place.read(name, 100)


def test_links_are_not_followed(place, tmp_path):
    (place.path / "link.txt").symlink_to(tmp_path / "outside.txt")
    (place.path / "inside.txt").write_text("known")
    (place.path / "near.txt").symlink_to(place.path / "inside.txt")
    for name in ("link.txt", "near.txt"):
        with pytest.raises(OSError, match="regular"):
            place.read(name, 100)
    assert place.read("inside.txt", 100) == b"known"
    (tmp_path / "runs" / "b").symlink_to(place.path)
    with pytest.raises(OSError, match="b"):
        Place(tmp_path / "runs", ("b",)).read("inside.txt", 100)


def test_devices_and_pipes_are_not_opened(place):
    os.mkfifo(place.path / "pipe")  # opening it would wait for a writer
    (place.path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match="regular"):
            place.read(name, 100)
    with pytest.raises(OSError, match="regular"):
        Place(place.root.__class__("/dev")).read("zero", 100)


def test_a_file_over_the_limit_is_refused(place):
    (place.path / "big").write_bytes(b"x" * 101)
    with pytest.raises(OSError, match="more than 100"):
        place.read("big", 100)


def test_a_log_is_read_on_and_read_anew_when_it_was_rewritten(place):
    log, rows = place.path / "log.jsonl", Rows()
    tail = Tail("log.jsonl", rows)
    assert not tail.look(place)
    log.write_text(line(1) + line(2) + '{"round": 3')  # the third is being written
    assert tail.look(place)
    assert [row["round"] for row in rows] == [1, 2]
    assert not tail.look(place)
    with log.open("a") as file:
        file.write("}\n")
    assert tail.look(place)
    assert [row["round"] for row in rows] == [1, 2, 3]

    # Resuming cuts a log and lets it grow again, here in the same file and to more than its old size.
    log.write_text(line(1) + line(2, again=True) + line(3, again=True))
    tail.look(place)
    assert [row.get("again") for row in rows] == [None, True, True]
    log.with_name("new").write_text(line(1))
    log.with_name("new").replace(log)
    tail.look(place)
    assert rows == [{"round": 1}]
    log.unlink()
    assert tail.look(place)
    assert rows == []


def test_damaged_lines_and_endless_lines_are_left_out(place, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 1_000)
    monkeypatch.setattr(files, "MOST_BYTES", 4_000)  # of a look
    log, rows = place.path / "log.jsonl", Rows()
    tail = Tail("log.jsonl", rows)
    log.write_bytes(b"[]\n{}\n\xff\xfe\nnull\n" + b"[" * 900 + b"\n" + b"x" * 20_000 + b"\n" + line(7).encode())
    for _ in range(8):
        tail.look(place)
    assert rows == [{"round": 7}]
    assert tail.damaged == 6
    with log.open("ab") as file:
        file.write(b"y" * 20_000)  # a line that does not end yet, and is not kept
    for _ in range(8):
        tail.look(place)
    assert rows == [{"round": 7}]


def test_runs_are_found_below_the_folders_and_not_through_links(tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "one")
    write_run(tmp_path / "runs" / "study" / "two")
    write_run(tmp_path / "elsewhere" / "three")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs")
    os.mkfifo(tmp_path / "runs" / "pipe")
    assert list(finding.find([tmp_path / "runs"])) == ["runs/one", "runs/study/two"]
    assert list(finding.find([tmp_path / "runs" / "one"])) == ["one"]
    (tmp_path / "other").mkdir()
    write_run(tmp_path / "other" / "runs" / "one")
    assert "runs-2/one" in finding.find([tmp_path / "runs", tmp_path / "other" / "runs"])
    monkeypatch.setattr(finding, "MOST_RUNS", 1)
    assert len(finding.find([tmp_path / "runs"])) == 1
