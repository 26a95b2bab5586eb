"""`hcfl reproduce`: run a table of the paper, ours beside theirs; what is already there is not run again."""

import csv
import fcntl
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, stdev
from threading import Lock
from typing import Any

import torch

from hcfl import experiments, run_folder
from hcfl.config import Config, assign
from hcfl.data import build
from hcfl.errors import InputError
from hcfl.experiment import execute, prepare, resume
from hcfl.experiments import Column, Row, Scale, Table
from hcfl.playing import Run

RESULT = "result.json"
"""What a finished run leaves beside its folder's files: the metrics that tables show."""

CHECKPOINT_EVERY = 20
"""Rounds that an interruption can cost."""


@dataclass(frozen=True)
class Task:
    """One run that some cell of a table needs."""

    config: Config
    folder: Path

    @property
    def done(self) -> bool:
        """Whether it has already run to its end, and what it found can be read."""
        try:
            return isinstance(self.result(), dict)
        except (OSError, ValueError):
            return False

    def result(self) -> dict[str, Any]:
        """Return what it found."""
        found: dict[str, Any] = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
        return found


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a run for each seed."""

    row: Row
    column: Column
    tasks: tuple[Task, ...]


def cells_of(
    table: Table, rows: Sequence[Row], seeds: int, scale: Scale, changes: Sequence[tuple[str, Any]], out: Path
) -> list[Cell]:
    """Return what must run. Cells with the same settings, also of other tables, share their runs."""
    cells = []
    for row in rows:
        for column in table.columns:
            tasks = []
            for seed in range(seeds):
                values: dict[str, Any] = {**experiments.settings_of(table, row, column, scale), "seed": seed}
                for path, value in changes:
                    assign(values, path, value)
                tasks.append(task_of(Config.parse(values), out / scale))
            cells.append(Cell(row, column, tuple(tasks)))
    return cells


def task_of(config: Config, out: Path) -> Task:
    """Return the run of a configuration, in a folder that is named after its settings."""
    # Without what has its default, so that a setting that a later version adds does not make all runs strangers.
    settings = config.model_dump(exclude={"device", "threads", "checkpoint_every"}, exclude_defaults=True)
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=4).hexdigest()
    source = Path(config.data.source).stem
    return Task(config, out / f"{config.method.name}-{source}-seed{config.seed}-{digest}")


def run(task: Task, threads: int | None = None) -> None:
    """Run one task; one that was interrupted goes on from its last checkpoint.

    Where somebody else is at it, wait: a lock, unlike a file, does not outlive its owner.
    """
    task.folder.parent.mkdir(parents=True, exist_ok=True)
    with task.folder.with_name(f"{task.folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not task.done:
            _run(task, threads)


def _run(task: Task, threads: int | None) -> None:
    finished = _finished(task, threads)
    result = {
        **{name: [entry[name] for entry in finished.rows] for name in ("val", "test", "clusters")},
        "seconds_per_round": finished.summary["seconds_per_round"],
        "memory_mb": _peak_memory(task.config.device),
        "class_table": _class_table(finished),
    }
    partial = task.folder / f"{RESULT}.part"
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.rename(task.folder / RESULT)
    shutil.rmtree(task.folder / run_folder.CHECKPOINT)  # no table needs the models, which are nearly all of the folder


def _finished(task: Task, threads: int | None) -> Run:
    """Play the task's run to its end: from its checkpoint, or, where there is none that can be read, anew."""
    if (task.folder / run_folder.CHECKPOINT).exists():
        try:
            return resume(task.folder)
        except InputError:
            pass  # an interruption can leave anything; what is lost is only time
    if task.folder.exists():
        shutil.rmtree(task.folder)
    every = task.config.checkpoint_every or CHECKPOINT_EVERY
    own = threads if task.config.device == "cpu" else None
    settings = {"threads": task.config.threads or own, "checkpoint_every": every}
    return execute(prepare(task.config.model_copy(update=settings)), task.folder)


def _class_table(finished: Run) -> list[list[int]]:
    """Training samples by cluster and class, each client's in its own cluster."""
    federation, server = finished.federation, finished.state.server
    counts = torch.zeros(len(server.clusters), federation.classes, dtype=torch.long)
    for rows, column in zip(federation.train, server.members.tolist(), strict=True):
        if column >= 0:
            counts[column] += torch.bincount(federation.y[rows].cpu(), minlength=federation.classes)
    table: list[list[int]] = counts.tolist()
    return table


def _peak_memory(device: str) -> float:
    """Megabytes: of the GPU where there is one, else of this process, which runs nothing else."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def run_all(tasks: Sequence[Task], workers: int, on_done: Callable[[Task, int, int], None]) -> None:
    """Run what is not there yet, each task in a process of its own, so that its memory is its own, too."""
    waiting = [task for task in dict.fromkeys(tasks) if not task.done]
    data = {(task.config.data, task.config.seed): Lock() for task in waiting}
    workers = max(1, min(workers, len(waiting)))
    threads = max(1, (os.cpu_count() or 1) // workers)  # more threads than cores are slower by far than one each

    def run_one(task: Task) -> None:
        with data[task.config.data, task.config.seed]:
            build(task.config.data, task.config.seed)  # decodes images on all cores, once; runs find them in the cache
        run_apart(task, threads)

    with ThreadPoolExecutor(workers) as pool:
        running: dict[Future[None], Task] = {pool.submit(run_one, task): task for task in waiting}
        try:
            for number, future in enumerate(as_completed(running), start=1):
                future.result()
                on_done(running[future], number, len(waiting))
        except BaseException:
            for future in running:  # those that have begun end properly
                future.cancel()
            raise


def run_apart(task: Task, threads: int) -> None:
    """Run one task in a process of its own, and raise here what it raises there."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hcfl.experiment"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(sender, task, threads))
    process.start()
    sender.close()
    try:
        error: Exception | None = receiver.recv()
    except EOFError:
        process.join()
        error = InputError(f"{task.folder.name}: its process ended with code {process.exitcode} before it was done")
    process.join()
    if error is not None:
        raise error


def _report(sender: Connection, task: Task, threads: int) -> None:
    try:
        run(task, threads)
        sender.send(None)
    except InputError as error:
        sender.send(error)
    except KeyboardInterrupt:  # whoever waits was interrupted, too, and says so
        sender.send(InputError(f"{task.folder.name}: was interrupted"))


def measured(cell: Cell, metric: str) -> list[float]:
    """Return one number for each seed, as the paper would print it: accuracies in percent."""
    return [_measure(task.result(), cell.row.at, metric) for task in cell.tasks]


def _measure(result: dict[str, Any], at: str, metric: str) -> float:
    if metric == "clusters":
        return float(result["clusters"][-1])
    if metric == "max_clusters":
        return float(max(result["clusters"]))
    if metric in ("val", "test"):
        values = [-1.0 if value is None else value for value in result[metric]]
        by = values if at == "best" else [-1.0 if v is None else v for v in result[at.removeprefix("best-")]]
        return 100 * values[max(range(len(by)), key=lambda round_: by[round_])]
    return float(result[metric])


NUMBERS = ("val", "test", "clusters", "max_clusters", "memory_mb", "seconds_per_round")
"""Metrics that are a number; others are shown below the table."""


@dataclass(frozen=True)
class Number:
    """One number of a table: ours over seeds, and the paper's."""

    method: str
    data: str
    metric: str
    ours: float | None
    std: float | None
    paper: float | None

    def __str__(self) -> str:
        ours = "–" if self.ours is None else f"{self.ours:.1f}"
        spread = "" if self.std is None else f" ± {self.std:.1f}"
        paper = "" if self.paper is None else f" [{self.paper:g}]"
        return f"{ours}{spread}{paper}"


def numbers(table: Table, cells: Sequence[Cell]) -> list[Number]:
    """Return all numbers of a table."""
    found = []
    for cell in cells:
        for metric in (metric for metric in table.metrics if metric in NUMBERS):
            values = measured(cell, metric)
            std = stdev(values) if len(values) > 1 else None
            paper = experiments.paper_value(table, cell.row, cell.column, metric)
            found.append(Number(cell.row.label, cell.column.label, metric, mean(values), std, paper))
    for row in table.quoted:
        for column in table.columns:
            for metric in table.metrics:
                paper = experiments.paper_value(table, row, column, metric)
                found.append(Number(row.label, column.label, metric, None, None, paper))
    return found


def extras(table: Table, cells: Sequence[Cell]) -> list[str]:
    """Return what does not fit a cell: classes by cluster, and K over rounds, of the first seed."""
    texts = []
    for cell in cells:
        result = cell.tasks[0].result()
        if "class_table" in table.metrics:
            for whose, counts in (("ours", result["class_table"]), ("the paper's", experiments.paper_class_table())):
                texts.append(f"{cell.row.label}, {cell.column.label}: training samples by cluster and class, {whose}")
                texts += ["  " + " ".join(f"{count:5d}" for count in line) for line in counts]
        if "curve" in table.metrics:
            texts.append(f"{cell.row.label}: K by round: {' '.join(map(str, result['clusters']))}")
    return texts


def write_csv(path: Path, found: Sequence[Number]) -> None:
    """Write the table for other programs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Number)])
        writer.writeheader()
        writer.writerows(asdict(number) for number in found)


def cuts(table: Table, scale: Scale, config: Config) -> str:
    """Say what a small scale leaves out, from the configuration of one of its runs."""
    if scale == "paper":
        return "Scale: the paper's."
    full, data = table.settings, config.data
    return (
        f"Scale: small. Not {full['model']['name']}, {full['training']['rounds']} rounds and 100 clients with all "
        f"samples, but {config.model.name}, {config.training.rounds} rounds and {data.clients} clients with "
        f"{data.samples} samples at {data.resize} pixels. "
        "This shows that the table runs, and cannot confirm or contradict the paper."
    )
