"""The ClientApp: one client's part of a round on its own node, by the same `client.py` that the local engines use."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from hcfl.config import Config, PrivacyConfig
from hcfl.core.client import take_part
from hcfl.core.evaluation import mixed_predictions
from hcfl.core.held_out import LIKELIHOOD, HeldOut, class_counts, likelihood_report
from hcfl.core.received import known_shares, predicted
from hcfl.core.setting import RoundTask, Setting, step_of
from hcfl.core.state import Broadcast, ClientState, PersonalPart, Update
from hcfl.data import Federation
from hcfl.engines.flower import dp, records, secagg_client
from hcfl.engines.flower.messages import Common, Measured, Question, Reply, Task, broadcast_of
from hcfl.engines.flower.secagg import UnreadableSharesError
from hcfl.engines.flower.sum_messages import DIVERGED, FAILED, AskKeys, AskReveal, AskShares, SealedTask, Upload
from hcfl.errors import InputError
from hcfl.flower.client_data import Mine, held_by, introduce
from hcfl.flower.client_store import ClientStore, StateLostError
from hcfl.methods import Method
from hcfl.models.ensemble import Ensemble, outputs_of
from hcfl.models.inputs import Scaled
from hcfl.models.precision import threads
from hcfl.own_code import naming_the_line
from hcfl.personal.inner_split import Gains
from hcfl.personal.making import predict
from hcfl.personal.measuring import PersonalParts, clients_of
from hcfl.privacy.rules import NOISED
from hcfl.privacy.sums import Parts, one_vote_each, summands
from hcfl.runs.backbone import fingerprint
from hcfl.runs.prepare import prepare
from hcfl.tiers.client_segments import Segments

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer which client this node is, and what the federation has to know of its data."""
    question = records.unpack(Question, message.content)
    return Message(records.pack(introduce(question, context.node_config)), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take part in a round; where uploads are to be noised, send summands instead of an update."""
    task = records.unpack(Task, message.content)
    privacy = _privacy(task.common.config)
    if privacy.mode == "none":
        answer: object = _reply(task, context)
    else:
        answer = _upload(task, context, lambda done: _noised(done, privacy, message, context))
    return Message(records.pack(answer), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the models that a run ends with; single clients' measurements stay at home in a private run."""
    task = records.unpack(Task, message.content)
    return Message(records.pack(_measured(task, context)), reply_to=message)


@app.query("keys")
def keys(message: Message, context: Context) -> Message:
    """Make the keys of a sum that the server will see, and of which it will see nothing else."""
    asked = records.unpack(AskKeys, message.content)
    return Message(records.pack(secagg_client.announce(asked, context)), reply_to=message)


@app.query("shares")
def shares(message: Message, context: Context) -> Message:
    """Give neighbours shares of the secrets."""
    asked = records.unpack(AskShares, message.content)
    return Message(records.pack(secagg_client.share(asked, context)), reply_to=message)


@app.train("sealed")
def sealed(message: Message, context: Context) -> Message:
    """Take part in a round, and send summands under masks."""
    asked = records.unpack(SealedTask, message.content)
    answer = _upload(asked.task, context, lambda done: secagg_client.masked(asked, done.summands, context))
    return Message(records.pack(answer), reply_to=message)


@app.query("reveal")
def reveal(message: Message, context: Context) -> Message:
    """Return the shares that open the sum."""
    asked = records.unpack(AskReveal, message.content)
    return Message(records.pack(secagg_client.reveal(asked, context)), reply_to=message)


def _reply(task: Task, context: Context) -> Reply:
    try:
        update = _take_part(task, context).update
    except InputError as error:
        lost = isinstance(error, StateLostError)
        return Reply(task.common.experiment, task.round, task.client, None, problem=str(error), lost=lost)
    return Reply(task.common.experiment, task.round, task.client, update)


def _measured(task: Task, context: Context) -> Measured:
    answer = Measured(task.common.experiment, task.client, 0, 0)
    try:
        if _privacy(task.common.config).mode != "none":
            raise InputError("a private run: what one client measures is not told")
        at = _located(task, context, task.round - 1)  # the models are those that the round before ended with
        with threads(at.prepared.threads), naming_the_line("measuring"):
            setting, federation, received = at.prepared.setting, at.prepared.mine.federation, at.received(task.client)
            found = measure(received, federation)
            answer = replace(answer, right=found.right, samples=found.samples, confusion=found.confusion)
            if isinstance(setting.personal, PersonalParts):
                gains = _gains(at, setting.personal, received, again=task.personal is not None)
                if task.personal is None:
                    return replace(answer, gains=gains.sent)
                alone = clients_of(received, setting.federation.local_data([0]))
                part = setting.personal.part(setting, alone, gains, task.personal)
                at.store.save_personal(part)
                answer = replace(answer, personal=measure(received, federation, part).right)
    except InputError as error:
        return replace(answer, problem=str(error))
    return answer


def _gains(at: "_Located", parts: PersonalParts, received: RoundTask, again: bool) -> Gains:
    """Return what a client found of its candidates: what it noted before it trained on what it had set aside.

    A client that has not trained on these finds it now, and keeps it until it is asked `again`, to make its part.
    """
    if at.state is not None and at.state.noted:
        return Gains(**at.state.noted)
    kept = at.store.load_gains() if again else None
    if kept is not None:
        return kept
    setting = received.setting
    found = parts.gains(setting, clients_of(received, setting.federation.local_data([0])))
    at.store.save_gains(found)
    return found


def _upload(task: Task, context: Context, protect: "Callable[[_Done], Parts]") -> Upload:
    try:
        done = _take_part(task, context)
        diverged = not bool(done.update.finite.all())
        parts = {} if diverged else protect(done)
    except InputError as error:
        print(f"Round {task.round}: {error}", flush=True)  # here, since it may tell something of the data
        lost = isinstance(error, StateLostError)
        unreadable = error.peers if isinstance(error, UnreadableSharesError) else ()
        return Upload(
            task.common.experiment, task.round, task.client, {}, problem=FAILED, lost=lost, unreadable=unreadable
        )
    problem = DIVERGED if diverged else ""
    return Upload(task.common.experiment, task.round, task.client, parts, problem=problem, diverged=diverged)


def _noised(done: "_Done", privacy: PrivacyConfig, message: Message, context: Context) -> Parts:
    """Return summands with everything in them bounded; a client's own noise is drawn once for each round.

    Were it drawn again when a round is played again, the mean of both would have less of it.
    """
    if privacy.mode not in NOISED:
        raise InputError(f"privacy.mode = {privacy.mode!r}: the server asked for an upload without masks")
    sent = done.store.load_upload(done.round)
    if sent is not None:
        return sent
    upload = dp.protected(done.method, privacy, summands(done.received, one_vote_each(done.update)), message, context)
    if privacy.mode == "local-dp":
        done.store.save_upload(done.round, upload)
    return upload


@lru_cache(maxsize=1)
def _config(text: str) -> Config:
    return Config.from_yaml(text)


def _privacy(config: str) -> PrivacyConfig:
    return _config(config).privacy


def _step(config: str, round_: int) -> int:
    """Return the step of a round, from 0."""
    parsed = _config(config)
    return step_of(round_, parsed.training.rounds_per_step, parsed.data.steps)


@dataclass(frozen=True)
class _Prepared:
    mine: Mine
    setting: Setting
    threads: int | None


@lru_cache(maxsize=64)
def _prepared(common: Common, client: int, node: str, step: int) -> _Prepared:
    """Build what a client needs in every round of a step; simulated clients that share a process keep it."""
    config = _config(common.config)
    mine = held_by(common, config, client, json.loads(node), step)
    setting = prepare(config, mine.federation).setting
    if fingerprint(setting.network.frozen_part()) != common.backbone:
        raise InputError(f"model.name = {config.model.name!r}: its frozen weights here differ from the server's")
    # It has inputs of the type that the network reads.
    return _Prepared(replace(mine, federation=setting.federation), setting, config.threads)


@dataclass(frozen=True)
class _Done:
    """A client's part of a round, done; it has not left the client yet."""

    round: int
    method: Method
    received: Ensemble
    update: Update
    store: ClientStore

    @property
    def summands(self) -> Parts:
        return summands(self.received, self.update)


@dataclass(frozen=True)
class _Located:
    """A task beside what the client has: its data, its files, its state, and the models as it reads them."""

    prepared: _Prepared
    store: ClientStore
    state: ClientState | None
    broadcast: Broadcast

    def received(self, client: int) -> RoundTask:
        """Return the client's part of a round as engines know it."""
        known = {} if self.state is None else {client: self.state}
        return RoundTask(self.prepared.setting, self.broadcast, [client], known)


def _located(task: Task, context: Context, round_: int) -> _Located:
    """Find what a client has for a task, with its data of a round."""
    common, node, step = task.common, context.node_config, _step(task.common.config, round_)
    own = bool(common.mean)  # a file of its own is read when a step begins, and has no later ones
    prepared = _prepared(common, task.client, json.dumps(dict(node), sort_keys=True), step if own else 0)
    store = ClientStore(Path(common.state_folder or str(node["state"])), common.experiment, prepared.mine.name)
    state = store.load(task.since)
    setting = prepared.setting
    mine = replace(prepared.mine, federation=setting.at(round_).federation)
    if state is not None and setting.step(state.round) == step:
        _check_samples(state, len(setting.at(state.round).federation.train[0]))
    broadcast = broadcast_of(task, len(common.class_names), _anchor(prepared.setting, task, store))
    return _Located(replace(prepared, mine=mine), store, state, broadcast)


def _take_part(task: Task, context: Context) -> _Done:
    at = _located(task, context, task.round)
    setting, federation, broadcast = at.prepared.setting, at.prepared.mine.federation, at.broadcast
    data = federation.local_data([0])
    with threads(at.prepared.threads), naming_the_line("training"):
        seen = federation.news if setting.begins_step(task.round) else federation
        received = at.received(task.client)
        found = measure(received, seen)
        update, (after,) = take_part(received, data=data)
    at.store.save(after, task.since)
    by_class = None if found.confusion is None else class_counts(found.confusion).float().unsqueeze(0)
    held_out = torch.tensor([[found.right, found.samples]], dtype=torch.float32)
    told = {LIKELIHOOD: found.likelihood.unsqueeze(0)} if setting.stops_early else {}
    measured = replace(update, held_out=held_out, by_class=by_class, reports={**update.reports, **told})
    return _Done(task.round, setting.method, broadcast.ensemble, measured, at.store)


def _check_samples(state: ClientState | None, samples: int) -> None:
    """Refuse a data file that has changed its length: the kept weights are of the former samples."""
    kept = None if state is None else state.weights.sample
    if kept is not None and len(kept) != samples:
        raise InputError(f"data: has {samples} samples for training, but had {len(kept)} when this run began")


def _anchor(setting: Setting, task: Task, store: ClientStore) -> Ensemble | None:
    """Return the initial model, where it is used: it comes with the first task, and is kept."""
    if not setting.method.uses_anchor:
        return None
    if task.since > 0:
        return store.load_anchor()
    anchor = task.ensemble.select([0]) if task.anchor is None else task.anchor
    store.save_anchor(anchor)
    return anchor


@dataclass(frozen=True)
class Measurement:
    """What a client says of its held-out samples."""

    right: float
    """The sum of their scores; of classes, how many are right."""
    samples: int
    confusion: torch.Tensor | None
    """Counts by label (rows) and predicted class (columns), where the task is to predict a class."""
    likelihood: torch.Tensor
    """The report `LIKELIHOOD`, (2,)."""


def measure(received: RoundTask, federation: Federation, part: PersonalPart | None = None) -> Measurement:
    """Measure the models that one client received on its held-out samples; with `part`, with its personal part."""
    network = received.setting.network
    rows, labelled = federation.val[0], network.task.name == "classification"
    if not len(rows):
        nothing = torch.zeros(2 * (federation.classes,), dtype=torch.long) if labelled else None
        return Measurement(0.0, 0, nothing, torch.zeros(2))
    inputs, segments = federation.inputs(rows), Segments((len(rows),))
    if not labelled and part is None:
        return _scored(received, inputs, federation.answers[rows])
    seen = predicted(received, inputs, segments)
    scores = seen.mixed if part is None else predict(network, part, seen, inputs)
    if not labelled:
        right = float(network.task.score(scores, federation.answers[rows]).sum())
        return Measurement(right, len(rows), None, torch.zeros(2))
    found = HeldOut.of(torch.zeros_like(rows), federation.y[rows], scores)
    confusion = found.confusion()
    return Measurement(float(confusion.trace()), len(rows), confusion, likelihood_report(found.log_likelihood))


def _scored(received: RoundTask, inputs: Scaled, answers: torch.Tensor) -> Measurement:
    """Measure held-out samples whose answers are no classes."""
    network, task = received.setting.network, received.setting.network.task
    state = next(iter(received.states.values()), None)
    if state is not None and state.own is not None:
        outputs = outputs_of(network, state.own, inputs)[:, :1]
        weights = outputs.new_ones(len(outputs), 1)
    else:
        outputs = outputs_of(network, received.broadcast.ensemble, inputs)
        weights = known_shares(received, inputs, Segments((len(inputs),)))
    mixed, _, log_likelihood = mixed_predictions(task, outputs, weights, answers)
    return Measurement(float(task.score(mixed, answers).sum()), len(answers), None, likelihood_report(log_likelihood))
