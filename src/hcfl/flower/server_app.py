"""The ServerApp: plays `core.rounds` with clients on other machines, and a checkpoint after every round."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hcfl.core import serialization, server
from hcfl.core.record import Record, Row
from hcfl.core.setting import Engine, uploads_needed
from hcfl.data import Federation
from hcfl.data.tables import Schema
from hcfl.engines.flower.directory import Directory
from hcfl.engines.flower.engine import Remote
from hcfl.engines.flower.last import LastMeasurement
from hcfl.engines.flower.messages import Common, Introduction, Question
from hcfl.engines.flower.private_engine import Private
from hcfl.errors import InputError
from hcfl.flower.client_data import Agreement, agree
from hcfl.flower.growing import check_steps
from hcfl.flower.introductions import problem_with_introduction, unlike_others
from hcfl.flower.node_log import NodeLog, NotedEngine, watched
from hcfl.flower.pacing import Paced
from hcfl.flower.run_settings import RunSettings, read
from hcfl.runs import atomic_file
from hcfl.runs import folder as run_folder
from hcfl.runs.backbone import fingerprint
from hcfl.runs.loop import Measuring, Prepared, play_on
from hcfl.runs.prepare import prepare
from hcfl.runs.restore import held, reopen
from hcfl.runs.save import saving

AGREEMENT = "agreement.json"
"""What the clients of a run agreed on, and the name they know it by; to go on, they need the same again."""

STATES = "client-states"
"""Where simulated clients keep what real ones keep on their own disks."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play a run, or play on."""
    problem_file = str(context.run_config.get("problem-file", ""))
    try:
        play(grid, read(context.run_config))
    except InputError as error:
        if problem_file:
            Path(problem_file).write_text(str(error), encoding="utf-8")
        raise


def play(grid: Grid, settings: RunSettings) -> None:
    """Find the clients, then play rounds with them."""
    out = settings.out.absolute()
    print(f"Run folder: {out}", flush=True)
    opened = reopen(out) if settings.resume and (out / run_folder.CONFIG).exists() else None
    for note in opened.notes if opened else ():
        print(note, flush=True)
    if opened and opened.state is None:
        run_folder.discard(out)  # it ended before its first round did
        opened = None
    config = opened.config if opened else settings.config
    if settings.names:
        check_steps(config.data)
    question = Question(settings.names, config.seed, config.data.val_share, config.data.kind, scale=config.data.scale)
    if settings.names and config.data.schema_file is not None:
        schema = Schema.load(config.data.schema_file).to_json()
        question = replace(question, schema=schema, time=config.data.time or "")
    if config.privacy.mode != "none" and settings.names:
        question = replace(question, classes=_named(settings.public.classes))
    if settings.names and isinstance(config.data.groups, str):
        question = replace(question, groups=config.data.groups)
    log = Attendance(out)
    nodes = NodeLog.begin(out, settings.names, config, settings.quorum, bool(opened)) if settings.names else None
    if nodes is not None:
        grid, log.also = watched(grid, nodes), nodes.refused
    directory = Directory(grid, question, settings.patience.timeout, log.refused)
    if settings.names:
        directory.on_presence = log.presence
        directory.accept = partial(problem_with_introduction, private=bool(question.classes))

    with nullcontext() if nodes is None or opened else nodes.forgotten_on_error():
        if opened:
            agreement = _read(out).with_names(settings.names)
        else:
            agreement = _deployed(settings, directory, log) if nodes is not None else _simulated(out)
        directory.accept = partial(_problem_with, agreement, bool(question.classes))
        directory.introduced = agreement.introduced
        prepared = prepare(config, agreement.federation(config.data) if settings.names else None)
        if not settings.names:
            _check_number(directory, prepared.setting.federation)
        frozen = fingerprint(prepared.setting.network.frozen_part())
        common = replace(agreement.common, config=prepared.config.to_yaml(), backbone=frozen)
        if not common.class_names:
            common = replace(common, class_names=prepared.setting.federation.class_names)

    with ExitStack() as until_the_end:
        if opened and opened.state:
            grown = server.enlarge(prepared.setting.method, opened.state.server, prepared.setting.federation.clients)
            prepared = replace(prepared, config=config, state=replace(opened.state, server=grown))
        else:
            until_the_end.enter_context(run_folder.begun(out, prepared.config))
        until_the_end.enter_context(held(out))
        log.begin(prepared.state.server.round)
        with saving(out):
            _write(out, replace(agreement, common=common))
        engine: Engine = Remote(directory, common, settings.patience)
        when = "After the round" if settings.measure == "rounds" else "At the end"
        without = partial(_say_without, prepared.setting.federation, when)
        last = LastMeasurement(directory, common, prepared.setting, settings.patience.timeout, without)
        private = prepared.config.privacy.mode != "none"  # then what single clients measure is not told
        if private:
            engine = Private(directory, common, prepared.config.privacy, settings.patience)
        metrics = opened.metrics if opened else []
        say = partial(_say, prepared.setting.federation, log, nodes)
        if nodes is not None:
            engine = NotedEngine(engine, nodes)
        if settings.step_seconds:
            engine = Paced(engine, settings.step_seconds, prepared.setting.step(prepared.state.server.round))
        ready = _with_engine(prepared, engine, settings.quorum)
        stop = partial(_told_to_stop, out)
        measuring = None if private else Measuring(last, settings.measure == "rounds")
        play_on(ready, out, metrics, say, 1, stop, measuring=measuring)
        if nodes is not None:
            nodes.tell("ended", 0, (), 0)


def _simulated(out: Path) -> Agreement:
    """Say where clients keep their states; the rest they find in the source that all of them can read."""
    return Agreement(Common(uuid4().hex, "", (), state_folder=str(out / STATES)))


def _deployed(settings: RunSettings, directory: Directory, log: "Attendance") -> Agreement:
    """Wait for all clients, at most `timeout`, then for a quorum, at most `wait`; return their agreement."""
    names, patience, began = settings.names, settings.patience, time.monotonic()
    needed = uploads_needed(settings.quorum, len(names))
    directory.wait_for(range(len(names)), len(names), min(patience.timeout, patience.limit))
    while True:
        here = directory.wait_for(range(len(names)), needed, patience.limit - (time.monotonic() - began))
        odd = unlike_others({node: directory.known[node] for node in here.values()})
        for node, reason in odd.items():
            directory.refuse(node, directory.known[node].name, reason)
        if not odd:
            break
    if len(here) < needed:
        absent = ", ".join(name for client, name in enumerate(names) if client not in here)
        raise InputError(
            f"wait = {patience.limit:g}: {needed} clients are needed to begin, but {len(here)} of {len(names)} came "
            f"(missing: {absent}){log.sentence()}"
        )
    introductions = [directory.known[node] for node in here.values()]
    question = directory.question
    public = settings.public if question.classes else None
    return agree(uuid4().hex, names, introductions, public, question.schema, question.scale)


def _named(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the classes of a private run; clients do not say which they hold."""
    if len(classes) < 2:
        raise InputError(f"classes = {', '.join(classes)!r}: a private run needs the names of all classes: '0, 1, 2'")
    return classes


def _check_number(directory: Directory, federation: Federation) -> None:
    nodes = len(directory.connected())
    if nodes != federation.clients:
        raise InputError(
            f"num-supernodes = {nodes}: the federation has {federation.clients} clients; "
            f'run it with --federation-config "num-supernodes={federation.clients}"'
        )


def _with_engine(prepared: Prepared, engine: Engine, quorum: float) -> Prepared:
    admission = prepared.setting.admission.model_copy(update={"quorum": quorum})
    return replace(prepared, setting=replace(prepared.setting, engine=engine, admission=admission))


def _problem_with(agreement: Agreement, private: bool, introduction: Introduction) -> str | None:
    """Return why a client that comes late cannot take part, if so."""
    if agreement.names and (problem := problem_with_introduction(introduction, private)):
        return problem
    return agreement.problem_with(introduction)


@dataclass
class Attendance:
    """Says which clients joined, left and cannot take part, and writes it to `events.jsonl` as soon as there is one."""

    out: Path
    also: Callable[[str, str], None] = lambda name, reason: None
    """Called with the same."""
    round: int = 0
    """Rounds completed."""
    begun: bool = False
    early: list[Row] = field(default_factory=list)
    """The rows from before the run folder was begun."""

    def refused(self, name: str, reason: str) -> None:
        """Note why a node was refused."""
        print(f"Refused: {name} ({reason})", flush=True)
        self.also(name, reason)
        self._note({"event": "refused", "round": 0, "client": name, "reason": reason})

    def presence(self, name: str, here: bool) -> None:
        """Note that a client was connected, or is no longer."""
        reason = "its node is connected" if here else "its node is no longer connected"
        print(f"{'Joined' if here else 'Left'}: {name}", flush=True)
        self._note({"event": "joined" if here else "left", "round": self.round, "client": name, "reason": reason})

    def _note(self, row: Row) -> None:
        if self.begun:
            run_folder.append_event(self.out, row)
        else:
            self.early.append(row)

    def begin(self, round_: int) -> None:
        """Write down what was noted so far; the run folder is there now."""
        self.begun, self.round = True, round_
        for row in self.early:
            run_folder.append_event(self.out, {**row, "round": min(round_, row["round"])})

    def sentence(self) -> str:
        """Return the reasons of refusals as the end of a sentence."""
        refused = [row for row in self.early if row["event"] == "refused"]
        reasons = "; ".join(f"{row['client']} ({row['reason']})" for row in refused)
        return f"; refused: {reasons}" if reasons else ""


def _told_to_stop(out: Path) -> bool:
    """Whether the operator asked the run to end after this round; the wish is fulfilled, so its file goes."""
    try:
        (out / run_folder.STOP).unlink()
    except OSError:
        return False
    print("Told to stop: ending after this round", flush=True)
    return True


def _say(federation: Federation, log: Attendance, nodes: NodeLog | None, record: Record) -> None:
    log.round = record.round
    if nodes is not None:
        nodes.ended(record)
    for one in record.missing:
        print(f"Round {record.round}: without {federation.client_names[one.client]} ({one.reason})", flush=True)
    print(f"Round {record.round}: {record.participants} clients, {record.clusters} clusters", flush=True)


def _say_without(federation: Federation, when: str, client: int, reason: str) -> None:
    print(f"{when}: {federation.client_names[client]} measured nothing that counts ({reason})", flush=True)


def _write(out: Path, agreement: Agreement) -> None:
    tree, _ = serialization.flatten(agreement)
    atomic_file.write_text(out / AGREEMENT, json.dumps(tree, indent=1))


def _read(out: Path) -> Agreement:
    try:
        return serialization.restore(Agreement, json.loads((out / AGREEMENT).read_text(encoding="utf-8")), {})
    except (OSError, ValueError) as error:
        raise InputError(f"out = {str(out)!r}: {AGREEMENT} cannot be read ({error})") from None
