"""All runs below the watched folders, and what is new of them for each visitor."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from hcfl.core.record import Row
from hcfl.report.page.reading import Folder
from hcfl.report.page.write_page import embedded
from hcfl.watch import finding
from hcfl.watch.detail import Detail
from hcfl.watch.glance import Glance

SEARCH_EVERY, LOOK_EVERY, ENDED_EVERY = 3.0, 0.5, 10.0
"""Seconds between two searches for new runs, and between two looks at a run, also at one that has ended."""

FORGET_AFTER = 60.0
"""Seconds after which the details of a run that no visitor looks at are given back."""

MOST_TOGETHER = 12
"""How many runs a page shows side by side."""


@dataclass
class Board:
    """The runs below some folders; all methods may be called from several threads."""

    folders: Sequence[Path]
    glances: dict[str, Glance] = field(default_factory=dict)
    details: dict[str, Detail] = field(default_factory=dict)
    _seen: dict[str, float] = field(default_factory=dict)
    _used: dict[str, float] = field(default_factory=dict)
    _searched: float = float("-inf")
    _lock: Lock = field(default_factory=Lock)

    def cards(self) -> dict[str, Row]:
        """Return the list of runs by id."""
        with self._lock:
            self._search()
            for id_, glance in self.glances.items():
                self._look(id_, glance)
            return {id_: glance.card() for id_, glance in self.glances.items()}

    def parts(self, id_: str) -> dict[str, str] | None:
        """Return the data of a run's page as JSON by part; None where there is no such run."""
        with self._lock:
            detail = self._detail(id_)
            return None if detail is None else detail.parts()

    def folder(self, id_: str) -> Folder | None:
        """Return a run as the report reads it; None where there is none, or no complete round."""
        with self._lock:
            detail = self._detail(id_)
            return None if detail is None else detail.folder()

    def _detail(self, id_: str) -> Detail | None:
        self._search()
        if id_ not in self.glances:
            return None
        if id_ not in self.details:
            self.details[id_] = Detail(self.glances[id_])
        self._used[id_] = time.monotonic()
        self._look(id_, self.details[id_])
        return self.details[id_]

    def _search(self) -> None:
        now = time.monotonic()
        if now - self._searched < SEARCH_EVERY:
            return
        places = finding.find(self.folders)
        self._searched = now
        self.glances = {id_: self.glances.get(id_) or Glance(id_, place) for id_, place in places.items()}
        in_use = {id_ for id_, used in self._used.items() if now - used < FORGET_AFTER}
        self.details = {id_: one for id_, one in self.details.items() if id_ in in_use and id_ in places}

    def _look(self, id_: str, what: Glance | Detail) -> None:
        """Read what is new of a run, unless that was done just now."""
        now, key = time.monotonic(), f"{type(what).__name__} {id_}"
        ended = self.glances[id_].state == "finished"
        if now - self._seen.get(key, float("-inf")) >= (ENDED_EVERY if ended else LOOK_EVERY):
            what.look()
            self._seen[key] = now


def news_of_list(board: Board, sent: dict[str, str]) -> str | None:
    """Return what is new in the list of runs since `sent`, which is brought up to date; None where nothing is."""
    cards = {id_: embedded(card) for id_, card in board.cards().items()}
    changed = [card for id_, card in cards.items() if sent.get(id_) != card]
    gone = [id_ for id_ in sent if id_ not in cards]
    first = not sent
    sent.clear()
    sent.update(cards)
    if not changed and not gone and not first:
        return None
    return _event("runs", f'{{"changed":[{",".join(changed)}],"gone":{embedded(gone)}}}')


def news_of_run(board: Board, id_: str, sent: dict[str, str]) -> str | None:
    """Return the parts of a run that are new since `sent`, which is brought up to date; None where nothing is."""
    parts = board.parts(id_)
    if parts is None:
        told, sent["gone"] = sent.get("gone"), "gone"
        return None if told else _event("gone", embedded(id_))
    sent.pop("gone", None)
    changed = {key: part for key, part in parts.items() if sent.get(key) != part}
    sent.update(changed)
    if not changed:
        return None
    inside = ",".join(f"{embedded(key)}:{part}" for key, part in changed.items())
    return _event("run", f'{{"id":{embedded(id_)},"parts":{{{inside}}}}}')


def _event(kind: str, data: str) -> str:
    """Return a server-sent event; JSON has no line ends of its own."""
    return f"event: {kind}\ndata: {data}\n\n"
