"""What clients note for their personal parts, before they train on the samples that they have set aside."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hcfl.core.setting import RoundTask
from hcfl.data.local_data import LocalData


def notes(task: RoundTask, data: LocalData) -> Sequence[Mapping[str, Tensor]]:
    """Return what each participant has noted; who has not yet, and must in this round, does so with `data`.

    A client notes once, with the models that it receives when it first takes part after the choosing round: they have
    not seen what it has set aside.
    """
    states, personal = [task.states.get(client) for client in task.participants], task.setting.personal
    known = [{} if state is None else state.noted for state in states]
    missing = torch.tensor([not mine for mine in known])
    if personal is None or not personal.notes_in(task.broadcast.round) or not bool(missing.any()):
        return known
    late = task.only([client for client, mine in zip(task.participants, known, strict=True) if not mine])
    fresh = iter(personal.note(late, data.only(missing)))
    return [mine or next(fresh) for mine in known]
