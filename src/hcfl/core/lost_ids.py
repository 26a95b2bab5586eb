"""The public error of CFL: positions in a cluster's sub-matrix are taken for client ids.

There, a cluster is a list of clients, and all clients of a list are averaged into its model. A split replaces a list of
n clients by two lists of the positions 0 to n − 1. So from the second split on, a client can be in two lists: then it
counts in both averages and goes on from the model of the later list. Or it is in none: then it goes on alone. Here,
such a client gets a cluster of its own, which is not listed: no K counts it, and no newcomer joins it.

Lists are no state of their own: the log of changes says all of them.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hcfl.core.cluster_log import Change, Split
from hcfl.core.state import ServerState, Update

Lists = dict[int, tuple[int, ...]]
"""The clients of each listed cluster, by its id, in the order of the public code."""


def lists_of(changes: Sequence[Change], clients: int) -> Lists:
    """Return the lists after some changes: a split puts two in the place of one."""
    lists: Lists = {0: tuple(range(clients))}
    for change in changes:
        if isinstance(change, Split) and change.rule != "alone":
            parts = {change.parent: change.first, change.child: change.second}
            lists = {
                cluster: listed
                for old, members in lists.items()
                for cluster, listed in (parts if old == change.parent else {old: members}).items()
            }
    return lists


def listed(state: ServerState) -> Tensor:
    """Return which clients count in which cluster, (clients, clusters): its list's; a client in no list, in its own."""
    lists = lists_of(state.changes, len(state.members))
    table = torch.zeros(len(state.members), len(state.clusters), dtype=torch.bool)
    for cluster, clients in lists.items():
        table[list(clients), state.column(cluster)] = True
    alone = ~table.any(dim=1) & (state.members >= 0)
    table[alone, state.members[alone]] = True
    return table


def unlisted(state: ServerState) -> Tensor:
    """Return which clusters are those of a client in no list, (clusters,)."""
    lists = lists_of(state.changes, len(state.members))
    return torch.tensor([cluster not in lists for cluster in state.clusters])


def last_lists(state: ServerState) -> dict[int, int]:
    """Return the id of the last list that each client is in; a client in no list is left out."""
    lists = lists_of(state.changes, len(state.members))
    return {client: cluster for cluster, clients in lists.items() for client in clients}


def counted(update: Update, table: Tensor) -> Update:
    """Let the model of each participant count in all clusters that a table (participants, clusters) has it in."""
    return replace(update, mass=update.sizes[update.row_participants].unsqueeze(1) * table[update.row_participants])


def counted_everywhere(update: Update) -> Update:
    """Let every participant's model count in whichever part of a split names it."""
    return counted(update, torch.ones(len(update.clients), update.mass.shape[1], dtype=torch.bool))
