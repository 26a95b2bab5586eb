"""What checkpoints cost, beside the rounds that they save: the runs of the demo, by how often they are written.

python benchmarks/checkpoints.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from hcfl.config import from_flat
from hcfl.launch import execute
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder
from hcfl.runs.prepare import prepare


def main() -> None:
    """Print a line for each method and period."""
    print("method        every    rounds (s)  checkpoints  each (ms)  each (kB)  of the time")
    for method in ("hcfl+(fedrc)", "fedavg"):
        for every in (None, 1):
            measure(method, every)


def measure(method: str, every: int | None) -> None:
    """Play a run and print what it took."""
    seconds, save = list[float](), run_folder.save

    def timed(*parts: Any) -> None:
        began = perf_counter()
        save(*parts)
        seconds.append(perf_counter() - began)

    run_folder.save = timed
    try:
        with TemporaryDirectory() as folder:
            run = execute(prepare(from_flat(method=method, checkpoint_every=every, rounds=30)), Path(folder) / "run")
            size = checkpoint.files(run.path / run_folder.CHECKPOINT)[0].stat().st_size
    finally:
        run_folder.save = save
    played, spent = sum(row["seconds"] for row in run.rows), sum(seconds)
    print(
        f"{method:13} {every or 'default':<8} {played:10.2f} {len(seconds):12} {1000 * spent / len(seconds):10.1f} "
        f"{size / 1000:10.0f} {100 * spent / (played + spent):11.1f}%",
        flush=True,
    )


if __name__ == "__main__":
    main()
