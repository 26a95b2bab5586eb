"""Runs that a table needs: each in a process of its own, begun once, gone on with, never repeated."""

import fcntl
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from hcfl import plugins, run_folder
from hcfl.config import Config
from hcfl.data import build
from hcfl.errors import InputError
from hcfl.experiment import execute, prepare, resume
from hcfl.playing import Run

RESULT = "result.json"
"""What a finished run leaves beside its folder's files: the metrics that tables show."""

CHECKPOINT_EVERY = 20
"""Rounds that an interruption can cost."""

PRELOADED = ["hcfl.tasks", "sklearn.cluster", "sklearn.datasets", "sklearn.metrics"]
"""What runs import, once for all of them; by itself each would take seconds for it."""


@dataclass(frozen=True)
class Task:
    """One run that some cell of a table needs."""

    config: Config
    folder: Path
    keep: bool = False
    """Whether its models stay when it has ended: they are nearly all of the folder, and tables do not need them."""

    @property
    def done(self) -> bool:
        """Whether it has already run to its end, and what it found can be read."""
        try:
            return isinstance(self.result(), dict)
        except (OSError, ValueError):
            return False

    @property
    def names_code(self) -> bool:
        """Whether whoever asks for it wants code of their own to run."""
        return bool(plugins.named(self.config.model_dump()))

    def result(self) -> dict[str, Any]:
        """Return what it found."""
        found: dict[str, Any] = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
        return found


def task_of(config: Config, out: Path, keep: bool = False) -> Task:
    """Return the run of a configuration, in a folder that is named after its settings."""
    # Without what has its default, so that a setting that a later version adds does not make all runs strangers.
    settings = config.model_dump(exclude={"device", "threads", "checkpoint_every"}, exclude_defaults=True)
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=4).hexdigest()
    source = Path(config.data.source).stem
    return Task(config, out / f"{config.method.name}-{source}-seed{config.seed}-{digest}", keep)


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
    if not task.keep:
        shutil.rmtree(task.folder / run_folder.CHECKPOINT)


def _finished(task: Task, threads: int | None) -> Run:
    """Play the task's run to its end: from its checkpoint, or, where there is none that can be read, anew."""
    if (task.folder / run_folder.CHECKPOINT).exists():
        try:
            return resume(task.folder, allow_code=task.names_code)
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
    context.set_forkserver_preload(PRELOADED)
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
