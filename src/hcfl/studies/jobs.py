"""The runs that a table needs: each is started, resumed where it was interrupted, and never repeated."""

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from filelock import FileLock

from hcfl.config import Config, plugins
from hcfl.errors import InputError, SavingError
from hcfl.launch import execute, resume
from hcfl.runs import atomic_file
from hcfl.runs import folder as run_folder
from hcfl.runs.loop import ShouldStop
from hcfl.runs.prepare import prepare
from hcfl.runs.run import Run
from hcfl.runs.save import saving

NO_EFFECT_ON_RESULTS = {"device", "threads", "checkpoint_every", "checkpoints_kept"}
"""Settings that say where and how a run executes; they do not distinguish run folders."""

CHANGED = {
    ("method", "adaptation"): ("split-on-gain", "split-on-contradiction"),
    ("training", "order"): ("auto", "heads-first"),
}
"""Defaults of hcfl++ that a later version changed: the new one is part of a run folder's name, the old one is not."""

UNNAMED = "hcfl+(fedrc)"
"""The method whose name is no part of a run folder's settings: it was the default until version 0.3."""

RESULT = "result.json"
"""The file that a complete run adds to its folder: the metrics that tables show."""


@dataclass(frozen=True)
class Task:
    """One run of a table: its configuration and its folder."""

    config: Config
    folder: Path
    keep: bool = False
    """Whether the models stay in the folder after the run: they are most of its size, and tables do not need them."""

    @property
    def done(self) -> bool:
        """Whether the run is complete and its result can be read."""
        try:
            return isinstance(self.result(), dict)
        except (OSError, ValueError):
            return False

    @property
    def names_code(self) -> bool:
        """Whether the configuration names code of the user, which then may run."""
        return bool(plugins.named(self.config.model_dump()))

    def result(self) -> dict[str, Any]:
        """Return the content of `result.json`."""
        result: dict[str, Any] = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
        return result


def task_of(config: Config, out: Path, keep: bool = False) -> Task:
    """Return the run of a configuration, in a folder of `out` that is named after its settings."""
    settings = _telling(config)
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=4).hexdigest()
    source = Path(config.data.source).stem
    return Task(config, out / f"{config.method.name}-{source}-seed{config.seed}-{digest}", keep)


def _telling(config: Config) -> dict[str, Any]:
    """Return the settings that name a run folder.

    Defaults are left out: a setting that a later version adds must not change the names of existing folders. Defaults
    that a later version did change, the method, `test_on` and those of hcfl++, are named, and their old values are not.
    """
    settings = config.model_dump(exclude=NO_EFFECT_ON_RESULTS, exclude_defaults=True)
    settings.get("evaluation", {}).pop("serve", None)  # says what is kept
    data = {**settings.get("data", {}), "test_on": config.data.test_on or "halves"}
    if data["test_on"] == "tenth":
        del data["test_on"]
    method = {name: value for name, value in settings.get("method", {}).items() if name != "name"}
    if config.method.name != UNNAMED:
        method = {"name": config.method.name, **method}
    named = {**settings, "method": method, "data": data}
    if config.method.name == "hcfl++":
        for (section, name), (new, old) in CHANGED.items():
            values = named.get(section, {})
            chosen = values.get(name) or new
            rest = {key: value for key, value in values.items() if key != name}
            named[section] = rest if chosen == old else {**rest, name: chosen}
    return {name: value for name, value in named.items() if value != {}}


def run(task: Task, threads: int | None = None, should_stop: ShouldStop | None = None) -> bool:
    """Run one task, or resume it from its last checkpoint; return whether it is complete.

    It is not where `should_stop()` was true after one of its rounds. Where another process runs the same task, wait: a
    lock, unlike a file, does not outlive its owner.
    """
    task.folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(task.folder.with_name(f"{task.folder.name}.lock")):
        return task.done or _run(task, threads, should_stop)


def _run(task: Task, threads: int | None, should_stop: ShouldStop | None) -> bool:
    finished = _finished(task, threads, should_stop)
    if finished.state.server.round < finished.config.training.rounds:
        return False
    result = {
        **{name: [entry[name] for entry in finished.rows] for name in ("val", "test", "clusters")},
        "seconds_per_round": finished.summary["seconds_per_round"],
        "memory_mb": _peak_memory(task.config.device),
        "class_table": _class_table(finished),
    }
    with saving(task.folder):
        atomic_file.write_text(task.folder / RESULT, json.dumps(result))
    if not task.keep:
        shutil.rmtree(task.folder / run_folder.CHECKPOINT)
    return True


def _finished(task: Task, threads: int | None, should_stop: ShouldStop | None) -> Run:
    """Run the task to its end, or until it is stopped: from its checkpoint, or, where that cannot be used, anew."""
    if (task.folder / run_folder.CONFIG).exists():
        try:
            return resume(task.folder, on_note=lambda note: None, allow_code=task.names_code, should_stop=should_stop)
        except SavingError:
            raise
        except InputError:
            pass  # an interruption can leave anything; what is lost is only time
    if task.folder.exists():
        shutil.rmtree(task.folder)
    own = threads if task.config.device == "cpu" else None
    settings = {"threads": task.config.threads or own}
    return execute(prepare(task.config.model_copy(update=settings)), task.folder, should_stop=should_stop)


def _class_table(finished: Run) -> list[list[int]]:
    """Count training samples by cluster and class; a client's samples count in its own cluster."""
    federation, server = finished.federation, finished.state.server
    counts = torch.zeros(len(server.clusters), federation.classes, dtype=torch.long)
    for rows, column in zip(federation.train, server.members.tolist(), strict=True):
        if column >= 0:
            counts[column] += torch.bincount(federation.y[rows].cpu(), minlength=federation.classes)
    table: list[list[int]] = counts.tolist()
    return table


def _peak_memory(device: str) -> float:
    """Return the peak memory in megabytes: of the GPU where the run used one, else of this process."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device) / 1e6
    if sys.platform == "win32":
        return float(psutil.Process().memory_info().peak_wset) / 1e6
    import resource  # psutil has no peak here

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
