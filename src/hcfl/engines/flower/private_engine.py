"""The engine for private runs: it gets the participants' sums, and makes the update of all of them together from it."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import uuid4

import torch
from torch import Tensor

from hcfl import rng
from hcfl.config import PrivacyConfig
from hcfl.core import serialization
from hcfl.core.collect import NoQuorumError
from hcfl.core.setting import RoundTask
from hcfl.core.state import Broadcast, ClientState, Missing, Update
from hcfl.engines.flower import dp, secagg
from hcfl.engines.flower.directory import PAUSE, Directory
from hcfl.engines.flower.engine import Patience
from hcfl.engines.flower.exchange import ask
from hcfl.engines.flower.messages import Common, Task, task_for
from hcfl.engines.flower.sum_messages import (
    AskKeys,
    AskReveal,
    AskShares,
    SealedTask,
    Shares,
    Upload,
    problem_with_upload,
    separated,
    unlike,
    whole_numbers,
)
from hcfl.errors import InputError
from hcfl.privacy.noise import deviation
from hcfl.privacy.rules import NOISED
from hcfl.privacy.sums import averaged, in_units
from hcfl.tiers import Weights

T = TypeVar("T")


@dataclass(frozen=True)
class Uploads:
    """The uploads that count, and what came of the others."""

    counted: dict[int, Upload]
    failed: dict[int, Missing]
    """Why the uploads of other clients do not count."""
    lost: set[int]
    """Clients that no longer have the state that the server knows of."""
    diverged: bool
    """Whether training diverged on some client."""
    accusations: frozenset[tuple[int, int]]
    """Which client cannot read the shares of which other (SecAgg+)."""


@dataclass(frozen=True)
class Collected:
    """What came of asking clients: whose summands are in the sums, the bytes they sent, and why others are not in."""

    clients: tuple[int, ...]
    sums: dict[str, Tensor]
    bytes: int
    failed: dict[int, Missing]
    lost: set[int]
    diverged: bool = False
    """Whether training diverged on some client."""
    accusations: frozenset[tuple[int, int]] = frozenset()
    """Which client cannot read the shares of which other (SecAgg+)."""
    unopened: int | None = None
    """The client whose secret could not be opened (SecAgg+)."""


@dataclass
class Private:
    """Ask the clients of a round for their part of the sums. A round that cannot be summed is asked for again."""

    directory: Directory
    common: Common
    privacy: PrivacyConfig
    patience: Patience
    lost: set[int] = field(default_factory=set)
    """Clients that no longer have the state that the server knows of; they start anew."""
    accusations: set[tuple[int, int]] = field(default_factory=set)
    """Which client said that it cannot read the shares of which other, in this run."""
    unopened: set[int] = field(default_factory=set)
    """Clients whose secrets could not be opened: a sum with them would fail again."""

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return one update of all clients that answered; of each of them the server knows the round, and no more."""
        setting, broadcast, participants = task.setting, task.broadcast, task.participants
        fewest = secagg.FEWEST if self.privacy.mode == "secagg" else 1
        if len(participants) < fewest:
            raise InputError(
                f"privacy.mode = 'secagg': {len(participants)} clients take part in a round, but a sum needs {fewest}"
            )
        needed = max(fewest, task.needed)
        end = time.monotonic() + self.patience.limit
        missing: dict[int, Missing] = {}
        refused: list[Missing] = []
        while True:
            barred = self._barred(participants)
            asked = [client for client in participants if client not in barred]
            nodes = self.directory.wait_for(asked, min(needed, len(asked)), end - time.monotonic())
            known = {client: None if client in self.lost else task.states.get(client) for client in asked}
            tasks = {c: task_for(self.common, setting.method, broadcast, c, known[c]) for c in asked if c in nodes}
            absent = {client: Missing(client, "is not connected") for client in asked if client not in nodes}
            collected = self._collect(tasks, nodes, needed, broadcast.round, setting.seed)
            self.lost = (self.lost | collected.lost) - set(collected.clients)
            self.accusations |= collected.accusations
            self.unopened |= set() if collected.unopened is None else {collected.unopened}
            missing = absent | collected.failed | barred
            gone = (*refused, *(missing[client] for client in sorted(missing) if missing[client] not in refused))
            if len(collected.clients) >= needed:
                break
            if collected.diverged:
                noised = self.privacy.mode in NOISED
                also = ", more clients or a smaller privacy.clip: there may be too much noise" if noised else ""
                raise InputError(
                    f"training.lr = {setting.sgd.lr:g}: training diverged in round {broadcast.round}; "
                    f"try a smaller one{also}"
                )
            if time.monotonic() >= end or len(participants) - len(self._barred(participants)) < needed:
                raise NoQuorumError(
                    f"quorum = {setting.admission.quorum:g}: {len(collected.clients)} of {len(participants)} clients "
                    f"are in the sum of round {broadcast.round}, but {needed} are needed; resume when more are there",
                    broadcast.round,
                    gone,
                )
            refused += [one for one in missing.values() if one.refused and one not in refused]
            time.sleep(PAUSE)
        update = replace(self._together(broadcast, collected), missing=gone)
        rows = [update.weights[[row]] for row in range(len(update.clients))]
        return update, [ClientState(broadcast.round, broadcast.clusters, Weights(row)) for row in rows]

    def _barred(self, participants: Sequence[int]) -> dict[int, Missing]:
        """Return the clients without whose shares the others can go on, with the reason."""
        found = {}
        for client in secagg.blamed(self.accusations) | self.unopened:
            by = sorted(accuser for accuser, accused in self.accusations if accused == client)
            of = sorted(accused for accuser, accused in self.accusations if accuser == client)
            if client in self.unopened:
                reason = "gave shares of its secrets that do not fit together"
            elif len(by) >= len(of):
                reason = f"sent shares that its neighbours cannot read (clients {', '.join(map(str, by))} say so)"
            else:
                reason = f"says of too many neighbours that it cannot read their shares ({', '.join(map(str, of))})"
            found[client] = Missing(client, reason, refused=True)
        return {client: found[client] for client in participants if client in found}

    def _together(self, broadcast: Broadcast, collected: Collected) -> Update:
        clients = collected.clients
        sums = in_units(dp.with_noise(self.privacy, collected.sums, len(clients)), self.privacy.clip)
        noise = deviation(self.privacy, sums, len(clients)) / (self.privacy.clip or 1)
        weights = broadcast.weights[list(clients)]
        return averaged(broadcast.ensemble, sums, clients, weights, collected.bytes, noise)

    def _collect(
        self, tasks: Mapping[int, Task], nodes: Mapping[int, int], needed: int, round_: int, seed: int
    ) -> Collected:
        if self.privacy.mode == "secagg":
            return self._sealed(tasks, nodes, needed, round_, seed)
        found = self._uploads(tasks, tasks, nodes, "train", torch.float32)
        uploads = found.counted
        sums: dict[str, Tensor] = {}
        if uploads:
            every = [upload.parts for upload in uploads.values()]
            sums = {name: torch.stack([parts[name].double() for parts in every]).sum(dim=0) for name in every[0]}
        return Collected(
            tuple(sorted(uploads)), sums, sum(map(_bytes, uploads.values())), found.failed, found.lost, found.diverged
        )

    def _sealed(
        self, tasks: Mapping[int, Task], nodes: Mapping[int, int], needed: int, round_: int, seed: int
    ) -> Collected:
        """Go through the steps of SecAgg+; a client that fails in one is not asked for the next.

        A sum that will not count is not opened: its difference to the one that does could be a single client's.
        """
        session = f"{self.common.experiment}-{round_}-{uuid4().hex}"
        order = rng.numpy_generator(seed, "ring", round_).permutation(sorted(tasks)).tolist()

        public, failed = self._ask(secagg.PublicKeys, {c: AskKeys(session, c) for c in tasks}, nodes, "query.keys")
        usable: dict[int, secagg.PublicKeys] = {}
        for client in sorted(public):
            if problem := secagg.problem_with_keys(public[client], list(usable.values())):
                failed[client] = Missing(client, problem, refused=True)
            else:
                usable[client] = public[client]
        public = usable
        peers = secagg.neighbours_of([client for client in order if client in public])
        keys = {c: AskShares(session, {peer: public[peer] for peer in peers[c]}) for c in public}
        shared, more = self._ask(Shares, keys if len(public) >= secagg.FEWEST else {}, nodes, "query.shares")
        failed |= more
        short = [c for c, one in shared.items() if not set(peers[c]) - {c} <= set(one.ciphertexts)]
        failed |= {c: Missing(c, "sent no shares for some of its neighbours", refused=True) for c in short}
        shared = {client: one for client, one in shared.items() if client not in short}

        questions = {
            client: SealedTask(
                session,
                tasks[client],
                {p: shared[p].ciphertexts[client] for p in peers[client] if p in shared and p != client},
                len(shared),
            )
            for client in shared
        }
        found = self._uploads(questions, tasks, nodes, "train.sealed", torch.int64)
        uploads, failed = found.counted, failed | found.failed
        nothing = Collected((), {}, 0, failed, found.lost, found.diverged, found.accusations)

        if len(uploads) < needed:
            few = f"{len(uploads)} vectors came, {needed} are needed"
            return replace(nothing, failed={**{c: Missing(c, few) for c in uploads}, **failed})
        commitments = {client: shared[client].commitment for client in uploads}
        dropped = tuple(client for client in shared if client not in uploads)
        reveal = {
            client: AskReveal(
                session,
                tuple(peer for peer in peers[client] if peer in uploads),
                tuple(peer for peer in peers[client] if peer in dropped),
            )
            for client in uploads
        }
        revealed, _ = self._ask(secagg.Revealed, reveal, nodes, "query.reveal")
        masked = {client: whole_numbers(upload.parts) for client, upload in uploads.items()}
        try:
            total = secagg.unmask(masked, dropped, peers, public, commitments, revealed)
        except InputError as error:
            unopened = error.client if isinstance(error, secagg.UnopenedError) else None
            closed = {**{c: Missing(c, str(error)) for c in masked}, **failed}
            return replace(nothing, failed=closed, unopened=unopened)
        sums = separated(torch.from_numpy(secagg.decode(total)), next(iter(uploads.values())).parts)
        size = sum(_bytes(answer) for kind in (public, shared, uploads, revealed) for answer in kind.values())
        return replace(nothing, clients=tuple(sorted(uploads)), sums=sums, bytes=size)

    def _uploads(
        self,
        questions: Mapping[int, object],
        tasks: Mapping[int, Task],
        nodes: Mapping[int, int],
        message_type: str,
        dtype: torch.dtype,
    ) -> Uploads:
        """Ask clients for their summands; return those that have the right form."""
        answers, failed = self._ask(Upload, questions, nodes, message_type)
        lost = {client for client, upload in answers.items() if upload.lost}
        seen = self.privacy if self.privacy.mode in NOISED else None  # masks hide norms
        problems = {c: problem_with_upload(upload, tasks[c], dtype, seen) for c, upload in answers.items()}
        failed |= {
            client: Missing(client, problem, refused=not answers[client].problem)
            for client, problem in problems.items()
            if problem is not None
        }
        uploads = {client: upload for client, upload in answers.items() if client not in failed}
        for client in unlike(uploads) if uploads else []:
            del uploads[client]
            failed[client] = Missing(client, "sent sums unlike the others'", refused=True)
        accusations = frozenset(
            (client, peer)
            for client, upload in answers.items()
            if client in failed and isinstance(question := questions[client], SealedTask)
            for peer in {*upload.unreadable} & {*question.ciphertexts}
        )
        return Uploads(uploads, failed, lost, any(upload.diverged for upload in answers.values()), accusations)

    def _ask(
        self, kind: type[T], questions: Mapping[int, object], nodes: Mapping[int, int], message_type: str
    ) -> tuple[dict[int, T], dict[int, Missing]]:
        """Ask clients; return the answers by client, and why others did not answer, or cannot be read."""
        client_of = {nodes[client]: client for client in questions}
        asked = {nodes[client]: question for client, question in questions.items()}
        answers = ask(self.directory.grid, kind, asked, message_type, self.patience.timeout)
        return (
            {client_of[node]: answer for node, answer in answers.received.items()},
            {
                client_of[node]: Missing(client_of[node], reason, refused=node in answers.unreadable)
                for node, reason in answers.failed.items()
            },
        )


def _bytes(answer: object) -> int:
    """Return the size of what an answer holds: numbers, keys, shares."""
    tree, tensors = serialization.flatten(answer)
    numbers = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return numbers if tensors else len(json.dumps(tree))
