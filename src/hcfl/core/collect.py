"""Which of a round's uploads count, which clients are missing, and what the user reads where too few uploads count.

Pure functions: `rounds.run_clients` calls the engine, and asks here what its answer means.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from hcfl.core.admission import only
from hcfl.core.refusal import Refusal
from hcfl.core.setting import RoundTask
from hcfl.core.state import ClientState, Missing, Update
from hcfl.errors import InputError


class NoQuorumError(InputError):
    """Too few uploads count; `missing` are the clients whose uploads do not, of all attempts at the round."""

    def __init__(self, sentence: str, round_: int, missing: tuple[Missing, ...]) -> None:
        super().__init__(sentence)
        self.round = round_
        self.missing = missing


@dataclass(frozen=True)
class Admitted:
    """What counts in a round."""

    update: Update
    states: Mapping[int, ClientState]
    """The new states of the clients whose uploads count; all others keep their states."""
    missing: tuple[Missing, ...]
    """The clients whose uploads do not count, of all attempts."""


def missing_clients(update: Update, refused: Mapping[int, Refusal], attempt: int) -> tuple[Missing, ...]:
    """Return the clients that did not answer in an attempt, then those whose uploads were refused."""
    both = (*update.missing, *(Missing(client, refused[client].text, refused=True) for client in sorted(refused)))
    return tuple(replace(one, attempt=attempt) for one in both)


def admit(
    update: Update, states: Sequence[ClientState], refused: Mapping[int, Refusal], missing: tuple[Missing, ...]
) -> Admitted:
    """Take the refused uploads out of a round."""
    stays = [client not in refused for client in update.clients]
    states = [state for state, stay in zip(states, stays, strict=True) if stay]
    update = only(update, torch.tensor(stays)) if refused else update
    return Admitted(update, dict(zip(update.clients, states, strict=True)), missing)


def diverged(update: Update, refused: Mapping[int, Refusal]) -> bool:
    """Whether most of the models that came are not finite or far too long: then the learning rate is to blame."""
    broken = sum(refusal.kind in ("not finite", "too long") for refusal in refused.values())
    return broken > len(update.clients) / 2


def divergence(task: RoundTask, missing: tuple[Missing, ...]) -> NoQuorumError:
    """Return the error of a round in which training diverged."""
    setting, round_ = task.setting, task.broadcast.round
    also = ", or a model without batch normalisation, which a few samples can upset" if setting.network.buffers else ""
    sentence = f"training.lr = {setting.sgd.lr:g}: training diverged in round {round_}; try a smaller one{also}"
    return NoQuorumError(sentence, round_, missing)


def no_quorum(task: RoundTask, missing: tuple[Missing, ...]) -> NoQuorumError:
    """Return the error of a round in which too few uploads count, with the commonest reason of the last attempt."""
    attempts, asked = 1 + max((one.attempt for one in missing), default=0), len(task.participants)
    last = [one for one in missing if one.attempt == attempts - 1]
    (why, times), *_ = Counter(one.reason for one in last).most_common(1)
    tries = f" after {attempts} tries" if attempts > 1 else ""
    sentence = (
        f"admission.quorum = {task.setting.admission.quorum:g}: {asked - len(last)} of {asked} "
        f"uploads count in round {task.broadcast.round}{tries}, but {task.needed} are needed ({times} {why}); "
        "what was reached is saved"
    )
    return NoQuorumError(sentence, task.broadcast.round, missing)
