"""Kill a run at random moments, resume it, and compare how it ends with a run that was not killed.

python benchmarks/kills.py
python benchmarks/kills.py --kills 5 --rounds 8
"""

import argparse
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder

HCFL = [sys.executable, "-m", "hcfl.cli"]
SETTINGS = ["hcfl+(fedrc)", "--rho", "0.05"]  # 30 clients with digits; a small ρ splits too often, so clusters go, too
TEXTS = ("events.jsonl", "splits.jsonl", "clients.csv", "classes.csv")


def main() -> None:
    """Print a line for each kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    with TemporaryDirectory() as folder:
        settings = [*SETTINGS, "--rounds", str(arguments.rounds)]
        whole = Path(folder) / "whole"
        play(settings, whole)
        kinds = [json.loads(line)["event"] for line in (whole / "events.jsonl").read_text().splitlines()]
        seconds = statistics.median(row["seconds"] for row in rows(whole))
        print(f"a run: {arguments.rounds} rounds, {kinds.count('split')} splits, {kinds.count('removal')} removals\n")
        print("kill  in round  after (s)  checkpoint of round  ends as the other did")
        same = number = 0
        while number < arguments.kills:
            out = Path(folder) / f"run-{number}"
            shutil.rmtree(out, ignore_errors=True)
            moment = (moments.randint(0, arguments.rounds), moments.uniform(0, 1.5 * seconds))
            if not play(settings, out, moment):
                continue  # it was over before the moment came
            number += 1
            saved = checkpoint.rounds(out / "checkpoint")[:1]
            played = len((out / "metrics.jsonl").read_bytes().splitlines()) if (out / "metrics.jsonl").exists() else 0
            subprocess.run([*HCFL, "resume", str(out)], check=True, stdout=subprocess.DEVNULL)
            differs = differences(whole, out)
            same += not differs
            found, last = ", ".join(differs) or "yes", saved[0] if saved else "–"
            print(f"{number:4}  {played + 1:8}  {moment[1]:9.2f}  {last:>19}  {found}", flush=True)
        print(f"\n{same} of {arguments.kills} end as the run that was not killed")


def play(settings: list[str], out: Path, moment: tuple[int, float] | None = None) -> bool:
    """Run a command; kill it so many seconds after so many rounds. Return whether that came before its end."""
    process = subprocess.Popen([*HCFL, "run", *settings, "--out", str(out)], stdout=subprocess.DEVNULL)
    if moment is not None:
        while process.poll() is None and len(rows(out)) < moment[0]:
            time.sleep(0.001)
        while process.poll() is None and not (out / "config.yaml").exists():
            time.sleep(0.001)
        with suppress(subprocess.TimeoutExpired):
            process.wait(moment[1])
        process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def differences(one: Path, two: Path) -> list[str]:
    """Return what is not the same in two run folders, but for seconds; models to the last bit."""
    found = [name for name in TEXTS if (one / name).read_bytes() != (two / name).read_bytes()]
    if metrics(one) != metrics(two):
        found.append("metrics.jsonl")
    summaries = [json.loads((path / "summary.json").read_text()) | {"seconds_per_round": None} for path in (one, two)]
    if summaries[0] != summaries[1]:
        found.append("summary.json")
    last = [checkpoint.files(path / "checkpoint")[0] for path in (one, two)]
    outlines = [path / "checkpoint" / checkpoint.OUTLINE_FILE for path in (one, two)]
    for mine, theirs in (last, outlines):
        if mine.name != theirs.name or mine.read_bytes() != theirs.read_bytes():
            found.append(theirs.name)
    return found


def metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rounds without what a clock says."""
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows(path)]


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rounds that are written down."""
    return run_folder.rows(path, run_folder.METRICS)


if __name__ == "__main__":
    main()
