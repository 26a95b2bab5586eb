"""Kill a run at random moments, resume it, and compare how it ends with a run that nobody killed.

python benchmarks/kills.py
python benchmarks/kills.py --kills 5 --rounds 8
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hcfl import checkpoint

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
        seconds = play(settings, whole)
        kinds = [json.loads(line)["event"] for line in (whole / "events.jsonl").read_text().splitlines()]
        print(f"a run: {arguments.rounds} rounds in {seconds:.1f} s, {kinds.count('split')} splits, ", end="")
        print(f"{kinds.count('removal')} removals\n")
        print("kill  after (s)  rounds in the log  checkpoint of round  ends as the other did")
        same = 0
        for number in range(1, arguments.kills + 1):
            out = Path(folder) / f"run-{number}"
            after = moments.uniform(0, seconds)
            play(settings, out, after)
            played = (out / "metrics.jsonl").read_bytes().count(b"\n") if (out / "metrics.jsonl").exists() else 0
            saved = checkpoint.rounds(out / "checkpoint")[:1]
            subprocess.run([*HCFL, "resume", str(out)], check=True, stdout=subprocess.DEVNULL)
            differs = differences(whole, out)
            same += not differs
            found = ", ".join(differs) or "yes"
            print(f"{number:4}  {after:9.2f}  {played:17}  {saved[0] if saved else '–':>19}  {found}", flush=True)
        print(f"\n{same} of {arguments.kills} end as if nobody had killed them")


def play(settings: list[str], out: Path, kill_after: float | None = None) -> float:
    """Run a command; kill it so many seconds after its folder appeared. Return how long it lasted from then on."""
    process = subprocess.Popen([*HCFL, "run", *settings, "--out", str(out)], stdout=subprocess.DEVNULL)
    while not (out / "config.yaml").exists():
        time.sleep(0.001)
    began = time.perf_counter()
    try:
        process.wait(kill_after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return time.perf_counter() - began


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
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


if __name__ == "__main__":
    main()
