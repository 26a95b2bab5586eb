"""Tasks side by side, each in a process of its own, so that its memory is its own, too."""

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
"""What runs import, once for all of them; by itself each would take seconds for it."""


class Running:
    """The processes that are under way; all of them can be asked to end."""

    def __init__(self) -> None:
        self._lock, self._processes, self._ending = Lock(), set[BaseProcess](), False

    def start(self, process: BaseProcess) -> None:
        """Start one more, unless all were asked to end."""
        with self._lock:
            if self._ending:
                raise InputError("runs were interrupted")
            process.start()
            self._processes.add(process)

    def ended(self, process: BaseProcess) -> None:
        """Forget one that has ended."""
        with self._lock:
            self._processes.discard(process)

    def end(self, at_once: bool) -> None:
        """Ask all of them to end: after their round, with what they have saved, or at once."""
        with self._lock:
            self._ending = True
            for process in self._processes:
                process.kill() if at_once else process.terminate()


def run_all(tasks: Sequence[Task], workers: int, on_done: Callable[[Task, int, int], None]) -> None:
    """Run what is not there yet. One that fails lets the others end; an interruption asks them to."""
    waiting = [task for task in dict.fromkeys(tasks) if not task.done]
    data = {(task.config.data, task.config.seed): Lock() for task in waiting}
    workers = max(1, min(workers, len(waiting)))
    threads = max(1, (os.cpu_count() or 1) // workers)  # more threads than cores are slower by far than one each
    running = Running()

    def run_one(task: Task) -> None:
        with data[task.config.data, task.config.seed]:
            build(task.config.data, task.config.seed)  # decodes images on all cores, once; runs find them in the cache
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
        if not isinstance(error, Exception):  # interrupted once more, while they were finishing their rounds
            running.end(at_once=True)
        raise


def run_apart(task: Task, threads: int, running: Running | None = None) -> None:
    """Run one task in a process of its own, and raise here what it raises there."""
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
        error = InputError(f"{task.folder.name}: its process ended with code {process.exitcode} before it was done")
    process.join()
    running.ended(process)
    if error is not None:
        raise error


def _report(sender: Connection, task: Task, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to everybody; who waits for us decides
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))

    try:
        complete = run(task, threads, lambda: bool(asked))
        sender.send(None if complete else InputError(f"{task.folder.name}: was interrupted"))
    except InputError as error:
        sender.send(error)
