"""A round's uploads: those that are let in, as long as there are enough of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import torch

from hcfl.core import admission
from hcfl.core.setting import Setting
from hcfl.core.state import Broadcast, ClientState, Missing, Update
from hcfl.errors import InputError


class NoQuorumError(InputError):
    """Too few uploads count; `missing` are those that do not, of all tries at the round."""

    def __init__(self, sentence: str, round_: int, missing: tuple[Missing, ...]) -> None:
        super().__init__(sentence)
        self.round = round_
        self.missing = missing


@dataclass(frozen=True)
class Gathered:
    """What counts in a round."""

    update: Update
    states: Mapping[int, ClientState]
    """Of those who count; all others stay where they were."""
    missing: tuple[Missing, ...]
    """Who does not, in all tries."""


def gather(
    setting: Setting, broadcast: Broadcast, participants: Sequence[int], states: Mapping[int, ClientState]
) -> Gathered:
    """Ask clients and let in what can be; without a quorum, the round is played again, a few times."""
    needed = max(1, ceil(setting.admission.quorum * len(participants) - 1e-9))
    missing: tuple[Missing, ...] = ()
    for attempt in range(setting.admission.tries):
        message = replace(broadcast, attempt=attempt)
        update, kept = setting.engine.execute(setting, message, participants, states)
        refused = refused_by(setting, message, update)
        lost = (*update.missing, *(Missing(client, refused[client], True) for client in sorted(refused)))
        missing = (*missing, *(replace(one, attempt=attempt) for one in lost))
        if len(update.clients) - len(refused) >= needed:
            if refused:
                update, kept = _without(setting, message, update, kept, refused, states)
            return Gathered(update, dict(zip(update.clients, kept, strict=True)), missing)
        broken = sum(map(_is_broken, refused.values()))
        if broken > len(update.clients) / 2:
            raise NoQuorumError(_diverged(setting, message.round), message.round, missing)
        if not update.missing:
            break  # everybody answered, and would send the same again
    raise NoQuorumError(_too_few(setting, broadcast, participants, needed, missing), broadcast.round, missing)


def refused_by(setting: Setting, broadcast: Broadcast, update: Update) -> dict[int, str]:
    """Return whose numbers are not let in, and why."""
    if not update.clients:
        return {}
    announced = [len(rows) for rows in setting.federation.train]
    longest = setting.admission.longest_model
    return admission.refusals(update, broadcast.ensemble, announced, setting.network.buffers, longest)


def _without(
    setting: Setting,
    broadcast: Broadcast,
    update: Update,
    kept: Sequence[ClientState],
    refused: Mapping[int, str],
    states: Mapping[int, ClientState],
) -> tuple[Update, list[ClientState]]:
    """Take uploads out of a round; where clients' sums were added up already, the others are asked again."""
    stays = [client not in refused for client in update.clients]
    if update.moments is not None:
        others = [client for client, stay in zip(update.clients, stays, strict=True) if stay]
        return setting.engine.execute(setting, broadcast, others, states)
    fine = admission.only(update, torch.tensor(stays))
    return fine, [state for state, stay in zip(kept, stays, strict=True) if stay]


def _is_broken(reason: str) -> bool:
    return reason == admission.NOT_FINITE or reason.startswith(admission.TOO_LONG.partition("{")[0])


def _diverged(setting: Setting, round_: int) -> str:
    also = ", or a model without batch normalisation, which a few samples can upset" if setting.network.buffers else ""
    return f"training.lr = {setting.sgd.lr:g}: training diverged in round {round_}; try a smaller one{also}"


def _too_few(
    setting: Setting, broadcast: Broadcast, participants: Sequence[int], needed: int, missing: Sequence[Missing]
) -> str:
    attempts = 1 + max((one.attempt for one in missing), default=0)
    last = [one for one in missing if one.attempt == attempts - 1]
    (why, times), *_ = Counter(one.reason for one in last).most_common(1)
    tries = f" after {attempts} tries" if attempts > 1 else ""
    return (
        f"admission.quorum = {setting.admission.quorum:g}: {len(participants) - len(last)} of {len(participants)} "
        f"uploads count in round {broadcast.round}{tries}, but {needed} are needed ({times} {why}); "
        "what was reached is saved"
    )
