"""A run with everything that its page shows: the report's own data, and what is only there while a run is under way."""

import csv
import json
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hcfl.config import Config
from hcfl.core.record import Row
from hcfl.errors import InputError
from hcfl.report.page import matrices
from hcfl.report.page.reading import DAMAGE, Folder, as_data, rule_of, trimmed
from hcfl.report.page.write_page import embedded
from hcfl.runs.checkpoint import NAME, SUFFIX
from hcfl.runs.csv_cells import plain
from hcfl.runs.folder import CHECKPOINT, CLASSES, CLIENTS, CONFIG, CONFUSION, EVENTS, METRICS, NODES, SPLITS, SUMMARY
from hcfl.runs.save import resume_command
from hcfl.runs.tables import summarise
from hcfl.watch.condense import MOST_COLUMNS, condensed
from hcfl.watch.files import Place, Sink, Tail
from hcfl.watch.glance import Glance, config_text, seconds_left
from hcfl.watch.nodes import commands as of_deployment
from hcfl.watch.nodes import read as read_nodes

MOST_ROUNDS, MOST_CHANGES, MOST_MISSING, MOST_SPLITS = 20_000, 4_000, 500, 24
"""How many rounds, changes of clusters, absences and splits are kept; of more, the last."""

MOST_NAMES = 20_000
"""For how many clients absences are counted."""

LISTED = 50
"""How many clients the list of absent and refused ones has, those with the most first."""

MOST_TABLE = 64 << 20
"""The most bytes of `clients.csv` and `classes.csv` that are read."""

LONGEST_NAME = 200

CARD = ("id", "state", "done", "rounds", "usual", "memory", "disk", "method", "data")
"""What the page shows of a run's card in the list, too."""


@dataclass
class Metrics:
    """The rows of `metrics.jsonl`; of too many clusters, only their number."""

    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=MOST_ROUNDS))

    def add(self, row: Row) -> None:
        """Take one round."""
        if len(row["cluster_ids"]) > MOST_COLUMNS:
            row = {**row, "cluster_ids": [], "cluster_sizes": []}
        self.rows.append(row)

    def clear(self) -> None:
        """Forget all rounds."""
        self.rows.clear()


@dataclass
class Events:
    """Changes of clusters with the sizes of their parts, and clients that were absent or refused."""

    changes: deque[Row] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))
    missing: deque[Row] = field(default_factory=lambda: deque(maxlen=MOST_MISSING))
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {"absent": Counter(), "refused": Counter()})
    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The last round and reason of each client."""

    def add(self, row: Row) -> None:
        """Take one event."""
        if row["event"] not in self.counts:
            self.changes.append({**row, "members": {key: len(names) for key, names in (row["members"] or {}).items()}})
            return
        client, reason = str(row["client"])[:LONGEST_NAME], str(row["reason"])[:LONGEST_NAME]
        self.missing.append({**row, "client": client, "reason": reason})
        if client in self.reasons or len(self.reasons) < MOST_NAMES:
            self.counts[row["event"]][client] += 1
            self.reasons[client] = (int(row["round"]), reason)

    def clear(self) -> None:
        """Forget all events."""
        self.changes.clear()
        self.missing.clear()
        self.reasons.clear()
        for counts in self.counts.values():
            counts.clear()

    def summary(self, last_round: int) -> Row:
        """Return how many clients were absent and refused, in all and in the last round, and who most often."""
        absent, refused = self.counts["absent"], self.counts["refused"]
        worst = sorted(self.reasons, key=lambda name: (-absent[name] - refused[name], name))[:LISTED]
        latest = Counter(row["event"] for row in self.missing if row["round"] == last_round)
        return {
            "absent": absent.total(),
            "refused": refused.total(),
            "latest": dict(latest),
            "clients": [[name, absent[name], refused[name], *self.reasons[name]] for name in worst],
            "others": len(self.reasons) - len(worst),
        }


@dataclass
class Distances:
    """The distances of the last splits, in the compact form of the page."""

    rows: deque[Row] = field(default_factory=lambda: deque(maxlen=MOST_SPLITS))

    def add(self, row: Row) -> None:
        """Take one split."""
        self.rows.extend(matrices.splits([row], matrices.STEPS**2))

    def clear(self) -> None:
        """Forget all splits."""
        self.rows.clear()


@dataclass
class Detail:
    """A run with its page's data; `look` reads what is new, `parts` gives the data as JSON by part."""

    glance: Glance
    metrics: Metrics = field(default_factory=Metrics)
    events: Events = field(default_factory=Events)
    splits: Distances = field(default_factory=Distances)
    config: Config | None = None
    problem: str | None = None
    """Why the run cannot be shown."""
    tables: dict[str, list[list[str]]] = field(default_factory=dict)
    """The rows of `clients.csv` and `classes.csv`, as they were at the last checkpoint."""
    clients: list[Row] = field(default_factory=list)
    _tails: list[Tail] = field(init=False)
    _stamps: dict[str, object] = field(default_factory=dict)
    _parts: dict[str, tuple[Any, str]] = field(default_factory=dict)
    _kept: Row = field(default_factory=dict)

    def __post_init__(self) -> None:
        sinks: dict[str, Sink] = {METRICS: self.metrics, EVENTS: self.events, SPLITS: self.splits}
        self._tails = [Tail(name, sink) for name, sink in sinks.items()]

    @property
    def place(self) -> Place:
        """Where the run is."""
        return self.glance.place

    def look(self) -> None:
        """Read what is new."""
        self.glance.look()
        for tail in self._tails:
            tail.look(self.place)
        if self._is_new(CONFIG):
            self.config, self.problem = None, None
            try:
                self.config = Config.from_yaml(config_text(self.place))
            except (OSError, InputError, ValueError) as error:
                self.problem = None if self.place.stamp(NODES) else f"{CONFIG} cannot be read ({error})"
        for name in (CLIENTS, CLASSES, CONFUSION):
            if self._is_new(name):
                self.tables[name] = _table(self.place, name)
                self._kept.clear()
                header, *rows = self.tables.get(CLIENTS) or [[]]
                self.clients = [dict(zip(header, row, strict=False)) for row in rows]

    def _is_new(self, name: str) -> bool:
        stamp = self.place.stamp(name)
        if name in self._stamps and self._stamps[name] == stamp:
            return False
        self._stamps[name] = stamp
        return True

    def folder(self) -> Folder | None:
        """Return the run as the report reads it; None before its first round has ended."""
        rows = sorted(self.metrics.rows, key=lambda row: int(row["round"]))
        if self.config is None or not rows:
            return None
        concepts = {row["true_concept"] for row in self.clients} - {""}
        summary = self._summary()
        ended = summary is not None and summary.get("rounds") == rows[-1]["round"]
        if summary is None or not ended:
            summary = summarise(self.config.method.name, self.config, len(concepts) or None, rows)
        events = sorted([*self.events.changes, *self.events.missing], key=lambda row: int(row["round"]))
        classes = self.tables.get(CLASSES, [])
        header, *counts = (self.tables.get(CONFUSION) if ended else None) or [[]]
        confusion = [dict(zip(header, row, strict=False)) for row in counts]
        return Folder(self.place.path, self.config, summary, ended, rows, events, (), self.clients, classes, confusion)

    def _summary(self) -> Row | None:
        try:
            found = json.loads(self.place.read(SUMMARY, 1 << 20))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and "method" in found else None

    def data(self) -> Row:
        """Return what the page shows."""
        label = self.glance.about["method"]
        nothing = {"label": label, "folder": self.place.path.name, "summary": None, "curves": None}
        try:
            folder = self.folder()
            shown = nothing if folder is None else self._shown(folder, label)
            problem = self.problem
        except (InputError, OSError, *DAMAGE) as error:
            shown, problem = nothing, f"a file of this run is damaged ({type(error).__name__}: {error})"
        return {**shown, "nodes": read_nodes(self.place), "live": self._live(problem)}

    def _shown(self, folder: Folder, label: str) -> Row:
        config = self._kept.setdefault("config", folder.config.to_yaml())
        shown = as_data(trimmed(folder) if "clients" in self._kept else folder, label, 0)
        if "clients" not in self._kept:
            self._kept["clients"], self._kept["classes"], self._kept["condensed"] = condensed(
                shown["clients"], shown["classes"]
            )
        return {**shown, **self._kept, "config": config, "splits": list(self.splits.rows)}

    def _live(self, problem: str | None) -> Row:
        glance, path = self.glance, self.place.path
        card = glance.card()
        last = self.metrics.rows[-1] if self.metrics.rows else None
        left = seconds_left(glance.state, glance.rounds.done, card["rounds"], card["usual"], glance.quiet)
        damaged = sum(tail.damaged for tail in self._tails)
        cut = [word for word, rows in self._bounded().items() if len(rows) == rows.maxlen]
        return {
            **{
                key: card[key] for key in ("id", "state", "done", "rounds", "usual", "memory", "disk", "method", "data")
            },
            "left": None if left is None else round(left),
            "pid": glance.by.pid if glance.by is not None and glance.by.alive else None,
            "missing": self.events.summary(glance.rounds.done),
            "participants": last and last.get("participants"),
            "problem": problem or glance.about.get("problem"),
            "damaged_lines": damaged,
            "cut": cut,
            "saved_round": saved_round(self.place),
            "rule": None if self.config is None else rule_of(self.config),
            "commands": commands(glance, path.absolute()),
        }

    def _bounded(self) -> dict[str, deque[Row]]:
        return {"rounds": self.metrics.rows, "changes": self.events.changes}

    def parts(self) -> dict[str, str]:
        """Return the page's data as JSON by part, so that only parts that changed have to be sent."""
        data = self.data()
        for key, value in data.items():
            known = self._parts.get(key)
            if known is None or known[0] is not value:
                self._parts[key] = (value, embedded(value))
        return {key: self._parts[key][1] for key in data}


def commands(glance: Glance, path: Path) -> list[tuple[str, str]]:
    """Return the commands that make sense now, each with what it does, for people to copy."""
    quoted = resume_command(path).removeprefix("hcfl resume ")
    if glance.place.stamp(NODES) is not None and glance.state not in ("starting", "finished"):
        return of_deployment(path, glance.state == "running")
    if glance.state == "running" and glance.by is not None and glance.by.alive:
        return [("stop after this round", f"kill -INT {glance.by.pid}")]
    if glance.state in ("killed", "stopped"):
        return [("resume", resume_command(path)), ("write a report", f"hcfl report {quoted}")]
    return [("write a report", f"hcfl report {quoted}")] if glance.state == "finished" else []


def saved_round(place: Place) -> int | None:
    """Return the round of the newest checkpoint: the one that `clients.csv` shows, and that a run resumes from."""
    names = [entry.name for entry in place.below(CHECKPOINT).entries() if entry.name.endswith(SUFFIX)]
    numbers = [name.removeprefix(NAME).removesuffix(SUFFIX) for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=None)


def _table(place: Place, name: str) -> list[list[str]]:
    try:
        text = place.read(name, MOST_TABLE).decode("utf-8")
        return [[plain(cell)[:LONGEST_NAME] for cell in row] for row in csv.reader(text.splitlines())]
    except (OSError, ValueError, csv.Error):
        return []
