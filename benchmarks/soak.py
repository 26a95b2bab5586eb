"""Play thousands of rounds with clients that fail and come back; memory and open files must stay flat.

python benchmarks/soak.py
python benchmarks/soak.py --rounds 200
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from hcfl.config import from_flat
from hcfl.core.record import Record
from hcfl.launch import execute
from hcfl.runs.prepare import prepare

FAULTS = "drop=0.2,drop_after=0.05,straggle=0.1,nan=0.04,stale=0.04,shape=0.02,sign=0.04"


def main() -> None:
    """Print memory and open files along the run, and how much they grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=50)
    arguments = parser.parse_args()
    config = from_flat(
        method="hcfl+(fedrc)",
        clients=arguments.clients,
        rounds=arguments.rounds,
        samples=600,
        epochs=1,
        batch=64,
        threads=1,
        evaluate_every=100,
        faults=FAULTS,
        quarantine=3,
        quorum=0.3,
        tries=20,
    )
    seen: list[tuple[int, float, int]] = []
    missing = 0

    def look(record: Record) -> None:
        nonlocal missing
        missing += len(record.missing)
        seen.append((record.round, resident(), len(list(Path("/proc/self/fd").iterdir()))))
        if record.round % (arguments.rounds // 10) == 0:
            print(f"round {record.round:5}: {seen[-1][1]:7.1f} MB, {seen[-1][2]} open files", flush=True)

    began = time.monotonic()
    with TemporaryDirectory() as folder:
        run = execute(prepare(config), Path(folder) / "run", look)
        size = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file()) / 1e6
        rows = (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(row)["round"] for row in rows] == list(range(1, arguments.rounds + 1))
    tenth = arguments.rounds // 10
    early, late = ([mb for round_, mb, _ in seen if low < round_ <= high] for low, high in
                   ((tenth, 2 * tenth), (9 * tenth, 10 * tenth)))  # fmt: skip
    files = {number for round_, _, number in seen if round_ > tenth}
    print(
        f"{arguments.rounds} rounds, {arguments.clients} clients, {missing} uploads missing or refused, "
        f"{(time.monotonic() - began) / 60:.0f} minutes, a run folder of {size:.1f} MB\n"
        f"memory: {statistics.median(early):.1f} MB in the second tenth, {statistics.median(late):.1f} MB in the last; "
        f"open files: {min(files)} to {max(files)}; Test {100 * run.summary['test_last']:.1f}"
    )


def resident() -> float:
    """Return the memory that the process holds, in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
