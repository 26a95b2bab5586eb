"""Several runs at a time, each in its own process, so that the memory of each can be measured."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Lock

from hcfl.data import build
from hcfl.errors import InputError
from hcfl.studies.jobs import Task, run

PRELOADED = ["hcfl.studies.pool", "sklearn.cluster", "sklearn.datasets", "sklearn.metrics"]
"""Modules that the fork server imports for all runs; in each process, the imports would take seconds."""


class Running:
    """The processes that are running; they can all be asked to end."""

    def __init__(self) -> None:
        self._lock, self._processes, self._ending = Lock(), set[BaseProcess](), False

    def start(self, process: BaseProcess) -> None:
        """Start a process, unless all were asked to end."""
        with self._lock:
            if self._ending:
                raise InputError("runs were interrupted")
            process.start()
            self._processes.add(process)

    def ended(self, process: BaseProcess) -> None:
        """Remove a process that has ended."""
        with self._lock:
            self._processes.discard(process)

    def end(self, at_once: bool) -> None:
        """End all processes: at once, or after their current round, which they save."""
        with self._lock:
            self._ending = True
            for process in self._processes:
                process.kill() if at_once else process.terminate()


def run_all(tasks: Sequence[Task], workers: int, on_done: Callable[[Task, int, int], None]) -> None:
    """Run the tasks that have no result yet, `workers` at a time.

    Where a run fails, no further run starts, and those under way complete. An interruption asks them to end after
    their round; a second one ends them at once.
    """
    waiting = [task for task in dict.fromkeys(tasks) if not task.done]
    data = {(task.config.data, task.config.seed): Lock() for task in waiting}
    workers = max(1, min(workers, len(waiting)))
    threads = max(1, (os.cpu_count() or 1) // workers)  # more threads than cores are far slower than one per core
    running = Running()

    def run_one(task: Task) -> None:
        with data[task.config.data, task.config.seed]:
            build(task.config.data, task.config.seed)  # decodes images on all cores; runs read them from the cache
        run_apart(task, threads, running)

    try:
        with ThreadPoolExecutor(workers) as pool:
            begun: dict[Future[None], Task] = {pool.submit(run_one, task): task for task in waiting}
            try:
                for number, future in enumerate(as_completed(begun), start=1):
                    future.result()
                    on_done(begun[future], number, len(waiting))
            except BaseException as error:
                for future in begun:
                    future.cancel()
                if not isinstance(error, Exception):
                    running.end(at_once=False)
                raise
    except BaseException as error:
        if not isinstance(error, Exception):  # a second interruption, while runs were completing their rounds
            running.end(at_once=True)
        raise


def run_apart(task: Task, threads: int, running: Running | None = None) -> None:
    """Run one task in its own process; an error of that process is raised here."""
    running = running or Running()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(sender, task, threads))
    running.start(process)
    sender.close()
    try:
        error: Exception | None = receiver.recv()
    except EOFError:
        process.join()
        error = InputError(
            f"{task.folder.name}: its process ended with code {process.exitcode} before the run was complete"
        )
    process.join()
    running.ended(process)
    if error is not None:
        raise error


def _report(sender: Connection, task: Task, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the parent decides
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))

    try:
        complete = run(task, threads, lambda: bool(asked))
        sender.send(None if complete else InputError(f"{task.folder.name}: was interrupted"))
    except InputError as error:
        sender.send(error)
