"""What `hcfl watch` costs: the time until 100 runs are shown, and its share of the time of a run that it shows.

    python benchmarks/watch.py

Needs Chromium and playwright. The page is open in Chromium all the time. A run is played with the page open and without
it, in turns, and the processor time of the server is compared with the time of the run that it shows.
"""

import json
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from playwright.sync_api import Page, sync_playwright

RUNS, ROUNDS, TURNS = 100, 30, 1
HCFL = (sys.executable, "-m", "hcfl.cli")


def play(out: Path, rounds: int) -> float:
    """Play a run; return the seconds of its rounds."""
    start(out, rounds).wait()
    return seconds_of_rounds(out)


def start(out: Path, rounds: int) -> "subprocess.Popen[bytes]":
    """Start a run in a process of its own."""
    command = [*HCFL, "run", "hcfl+(fedrc)", "--rounds", str(rounds), "--threads", "1", "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def seconds_of_rounds(run: Path) -> float:
    """Return the seconds of all rounds of a run."""
    return sum(json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines())


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Serve the page of a folder in a process of its own; give the address and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*HCFL, "watch", str(folder), "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def seconds_of(process: psutil.Process) -> float:
    """Return the processor time of a process so far."""
    times = process.cpu_times()
    return times.user + times.system


def open_many(page: Page, folder: Path) -> None:
    """Print the time until all runs are shown, by a server that was just started, and again."""
    one = folder / "run-0"
    play(one, 10)
    for number in range(1, RUNS):
        shutil.copytree(one, folder / f"run-{number}")
    with server(folder) as (address, process):
        for words in ("at first", "again"):
            began = time.perf_counter()
            page.goto(address)
            page.wait_for_selector(f"tbody tr:nth-child({RUNS})")
            print(f"{RUNS} runs are shown after {time.perf_counter() - began:.2f} s ({words})")
        before, began = seconds_of(process), time.perf_counter()
        time.sleep(10)
        share = (seconds_of(process) - before) / (time.perf_counter() - began)
        print(f"the list of {RUNS} finished runs then takes {100 * share:.2f} % of one core")
        print(f"memory of the server: {process.memory_info().rss / 1e6:.0f} MB")


def follow_one(page: Page, folder: Path) -> None:
    """Print what following a run costs."""
    shares, alone, watched = [], [], []
    with server(folder) as (address, process):
        for turn in range(TURNS):
            page.goto("about:blank")
            alone.append(play(folder / f"alone-{turn}", ROUNDS))
            page.goto(address)
            before, began = seconds_of(process), time.perf_counter()
            following = start(folder / f"watched-{turn}", ROUNDS)
            page.wait_for_selector(f"tr[data-run='{folder.name}/watched-{turn}'].running", timeout=120_000)
            page.goto(f"{address}/run/{folder.name}/watched-{turn}")
            while following.poll() is None:
                page.wait_for_timeout(200)  # let the browser work
            took = time.perf_counter() - began
            shares.append((seconds_of(process) - before) / took)
            watched.append(seconds_of_rounds(folder / f"watched-{turn}"))
            page.wait_for_selector(".chip.state.finished", timeout=30_000)
    print(f"the server took {', '.join(f'{100 * share:.2f} %' for share in shares)} of the time of the run it showed")
    print(
        f"{ROUNDS} rounds took {statistics.median(alone):.1f} s alone, {statistics.median(watched):.1f} s with the page"
    )


def main() -> None:
    """Measure both."""
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        for name, measure in (("many", open_many), ("one", follow_one)):
            (Path(folder) / name).mkdir()
            measure(page, Path(folder) / name)
        browser.close()


if __name__ == "__main__":
    main()
