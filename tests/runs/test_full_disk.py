"""A disk that is full: what was saved stays whole, one sentence says so, and the run goes on when there is room."""

import os
import resource
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hcfl.cli import main
from hcfl.config import from_flat
from hcfl.core.cluster_log import Removal
from hcfl.errors import SavingError
from hcfl.launch import execute, resume
from hcfl.runs import atomic_file, checkpoint, state_file
from hcfl.runs.prepare import prepare
from interrupting import CHANGING, FLAGS, assert_same_end, without_seconds

EVERY = {**CHANGING, "checkpoint_every": 1}


@contextmanager
def files_of_at_most(size):
    """Let the system refuse what would make a file longer: as a full disk does, and without one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    execute(prepare(from_flat(**EVERY)), path)
    return path


def rest_of(log):
    """Return how long a log may become where there is room for half a line."""
    return log.stat().st_size + 100


@pytest.mark.parametrize(
    ("after", "limit"),
    [
        (2, lambda run: 100_000),  # a checkpoint does not fit
        (3, lambda run: rest_of(run / "metrics.jsonl")),  # half a line does
        (6, lambda run: 100),  # nor what is written at the end
    ],
)
def test_the_last_checkpoint_stays_whole_and_the_run_goes_on_from_it(tmp_path, whole, after, limit):
    run = tmp_path / "run"
    with ExitStack() as filled:

        def fill(record):
            if record.round == after:
                filled.enter_context(files_of_at_most(limit(run)))

        with pytest.raises(SavingError) as told:
            execute(prepare(from_flat(**EVERY)), run, fill)
    last = checkpoint.file_of(run / "checkpoint", after)
    assert str(told.value) == (
        f"out = '{run}': cannot be written (File too large); the last checkpoint is {last}, "
        f"and once there is space again, this goes on: hcfl resume {run}"
    )
    assert checkpoint.read(last).state.server.round == after
    assert not list(run.rglob("*.unfinished"))
    assert without_seconds(run)[:after] == without_seconds(whole)[:after]
    resume(run, on_note=lambda note: None)
    assert_same_end(run, whole)


def test_the_command_says_it_without_a_traceback(tmp_path, whole, capsys):
    run = tmp_path / "run"
    with files_of_at_most(100_000):
        assert main(["run", "hcfl+(fedrc)", *FLAGS, "--checkpoint-every", "1", "--out", str(run)]) == os.EX_IOERR
    told = capsys.readouterr().err
    assert told.startswith(f"hcfl: out = '{run}': cannot be written (File too large); there is no checkpoint yet, and")
    assert told.count("\n") == 1
    with files_of_at_most(100_000):
        assert main(["resume", str(run)]) == os.EX_IOERR
    assert main(["resume", str(run)]) == 0
    assert_same_end(run, whole)


def test_other_commands_say_it_too(tmp_path, whole, capsys):
    with files_of_at_most(1000):
        assert main(["report", str(whole), "--out", str(tmp_path / "r.html")]) in (2, os.EX_IOERR)
    told = capsys.readouterr().err
    assert "cannot be written (File too large)" in told
    assert told.count("\n") == 1


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own that can be full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mount: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(small_disk, whole, capsys):
    run = small_disk / "run"
    filler = small_disk / "others"
    filler.write_bytes(b"x" * 200_000)
    assert main(["run", "hcfl+(fedrc)", *FLAGS, "--checkpoint-every", "1", "--out", str(run)]) == os.EX_IOERR
    told = capsys.readouterr().err
    assert f"hcfl: out = '{run}': cannot be written (No space left on device); the last checkpoint is {run}" in told
    assert not list(run.rglob("*.unfinished"))
    for path in checkpoint.files(run / "checkpoint"):
        checkpoint.read(path)
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert main(["resume", str(run)]) == 0
    assert_same_end(run, whole)


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path):
    state, text = tmp_path / "it.safetensors", tmp_path / "it.txt"
    state_file.write(state, Removal(1, 2), 1)
    atomic_file.write_text(text, "before")
    with files_of_at_most(3):
        with pytest.raises(OSError, match="File too large"):
            state_file.write(state, Removal(3, 4), 1)
        with pytest.raises(OSError, match="File too large"):
            atomic_file.write_text(text, "afterwards")
    assert state_file.read(Removal, state, 1, "it") == Removal(1, 2)
    assert text.read_text() == "before"
    assert {path.name for path in Path(tmp_path).iterdir()} == {"it.safetensors", "it.txt"}
