"""What the list of runs shows of each: its state, its progress and its last numbers."""

import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from hcfl.config.yaml_files import parse
from hcfl.core.record import Row
from hcfl.errors import InputError
from hcfl.runs.folder import CHECKPOINT, CONFIG, METRICS, NODES, SUMMARY
from hcfl.watch.files import Place, Tail
from hcfl.watch.nodes import LATE
from hcfl.watch.nodes import read as read_nodes
from hcfl.watch.process import Player, player

State = Literal["starting", "running", "finished", "stopped", "killed", "unknown", "damaged"]
"""`stopped`: it saved what it had and ended early. `killed`: its process ended without a word. `unknown`: its process
is on another machine, and the folder has not changed for long."""

POINTS = 120
"""How many values of Val the list keeps of a run, for its small curve."""

RECENT = 10
"""From how many of the last rounds the time left is estimated."""

QUIET = 10.0
"""After how many times its usual seconds a round on another machine counts as unknown."""

MOST_CONFIG, MOST_BRACKETS = 1 << 17, 500
"""The most bytes of a configuration that are read, and the most lists in it: deep ones keep the parser busy."""


@dataclass
class Rounds:
    """The numbers of the last round, and Val of all, thinned out."""

    done: int = 0
    last: Row = field(default_factory=dict)
    val: list[tuple[int, float]] = field(default_factory=list)
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, row: Row) -> None:
        """Take one round."""
        self.done = int(row["round"])
        self.last = {key: row.get(key) for key in ("val", "test", "clusters", "participants")}
        self.seconds.append(float(row["seconds"]))
        if row.get("val") is not None:
            self.val.append((self.done, float(row["val"])))
        if len(self.val) > 2 * POINTS:
            self.val = [*self.val[:-1:2], self.val[-1]]

    def clear(self) -> None:
        """Forget all rounds."""
        self.done, self.last, self.val = 0, {}, []
        self.seconds.clear()

    @property
    def usual_seconds(self) -> float | None:
        """The median of the last rounds' seconds."""
        return statistics.median(self.seconds) if self.seconds else None


def state_of(done: int, wanted: int, saved: bool, by: Player | None, quiet: float, usual: float | None) -> State:
    """Return the state of a run: `saved` says whether its summary is there, `quiet` how long nothing was written.

    >>> state_of(done=3, wanted=30, saved=False, by=None, quiet=5.0, usual=1.0)
    'stopped'
    """
    if by is None:
        return "finished" if saved and done >= wanted else "stopped"
    if by.alive:
        return "running" if done else "starting"
    if by.here:
        return "killed"
    return "running" if quiet < max(120.0, QUIET * (usual or 0.0)) else "unknown"


def seconds_left(state: State, done: int, wanted: int, usual: float | None, quiet: float) -> float | None:
    """Estimate the time until the last round ends; None where that cannot be known.

    >>> seconds_left("running", done=20, wanted=30, usual=2.0, quiet=0.5)
    19.5
    """
    if state != "running" or usual is None:
        return None
    return max(0.0, (wanted - done) * usual - min(quiet, usual))


def disk(place: Place) -> int:
    """Return the bytes of a run folder's files, those of its checkpoints among them."""
    folders = (place, place.below(CHECKPOINT))
    return sum(entry.size for folder in folders for entry in folder.entries() if not entry.is_folder)


@dataclass
class Glance:
    """A run as the list shows it; `look` reads what is new."""

    id: str
    place: Place
    rounds: Rounds = field(init=False)
    log: Tail = field(init=False)
    about: Row = field(default_factory=dict)
    """The method, the data and the number of rounds, as the configuration has them."""
    by: Player | None = None
    state: State = "starting"
    written: float = 0.0
    """When the last round was written, in seconds since 1970."""
    bytes: int = 0
    _config: object = None

    def __post_init__(self) -> None:
        self.rounds = Rounds()
        self.log = Tail(METRICS, self.rounds)

    def look(self) -> None:
        """Read what is new."""
        stamp = self.place.stamp(CONFIG)
        nodes = read_nodes(self.place) if stamp is None else None
        if nodes is not None:
            self.about = nodes["about"]
        elif stamp != self._config or not self.about:
            self._config, self.about = stamp, _about(self.place)
        if self.log.look(self.place) or not self.bytes:
            self.bytes = disk(self.place)
        self.by = player(self.place)
        written = self.place.stamp(METRICS) or self.place.stamp(NODES)
        self.written = written[2] / 1e9 if written else 0.0
        saved = self.place.stamp(SUMMARY) is not None
        usual = self.rounds.usual_seconds
        self.state = state_of(self.rounds.done, self.about["rounds"], saved, self.by, self.quiet, usual)
        if nodes is not None:
            self.state = "starting" if self.quiet < LATE else "stopped"
        elif "problem" in self.about:
            self.state = "damaged"

    @property
    def quiet(self) -> float:
        """Seconds since the last round was written."""
        return max(0.0, time.time() - self.written)

    def card(self) -> Row:
        """Return the run for the page."""
        usual, rounds = self.rounds.usual_seconds, self.rounds
        left = seconds_left(self.state, rounds.done, self.about["rounds"], usual, self.quiet)
        return {
            "id": self.id,
            **self.about,
            "state": self.state,
            "done": rounds.done,
            "last": rounds.last,
            "val": [value for _, value in rounds.val],
            "written": int(self.written),
            "left": None if left is None else round(left, 1),
            "usual": usual,
            "memory": self.by.memory if self.by is not None and self.by.alive else None,
            "disk": self.bytes,
            "damaged_lines": self.log.damaged,
        }


def config_text(place: Place) -> str:
    """Return the text of a run's configuration; OSError or ValueError where it cannot be one."""
    text = place.read(CONFIG, MOST_CONFIG).decode("utf-8")
    if text.count("[") + text.count("{") > MOST_BRACKETS:
        raise ValueError("it has too many lists")
    return text


WANTED = {"method": "name", "data": "source", "training": "rounds", "": "seed"}
"""What the list needs of a configuration, by section."""


def _wanted_lines(text: str) -> str:
    """Return only the lines that the list needs, as runs write them; nothing where they stand in another form.

    Parsing all settings of a hundred runs would take seconds.
    """
    section, kept, found = "", list[str](), 0
    keeping = False
    for line in text.splitlines():
        name, continued = line.strip().partition(":")[0], line.startswith("    ")
        if not line.startswith(" "):
            section = name
            keeping = line == f"{name}:" if name in WANTED else line.startswith(f"{WANTED['']}: ")
        elif not continued:  # a long value goes on in the next line
            keeping = WANTED.get(section) == name
        if keeping:
            kept.append(line)
            found += not continued
    return "\n".join(kept) if found == 2 * len(WANTED) - 1 else ""


def _about(place: Place) -> Row:
    """Return what the list shows of a configuration; it is not validated, only read."""
    try:
        text = config_text(place)
        values: Any
        try:
            values = parse(_wanted_lines(text), CONFIG)
        except InputError:  # in another form
            values = parse(text, CONFIG)
        return {
            "method": str(values["method"]["name"])[:200],
            "data": str(values["data"]["source"])[:200],
            "seed": int(values.get("seed", 0)),
            "rounds": int(values["training"]["rounds"]),
        }
    except (OSError, InputError, ValueError, LookupError, TypeError) as error:
        return {"method": "?", "data": "?", "seed": 0, "rounds": 0, "problem": f"{CONFIG} cannot be read ({error})"}
