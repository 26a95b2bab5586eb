"""The groups that a user gives clients to start with: country, ward, device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcfl.errors import InputError


@dataclass(frozen=True)
class GivenGroups:
    """Which group each client begins in."""

    of: NDArray[np.int64]
    """(clients,): the number of the group; −1 for a client whose group is not known."""
    names: tuple[str, ...]

    @staticmethod
    def named(groups: Sequence[str | None]) -> "GivenGroups":
        """Give numbers to the groups of all clients, in the order of their names; None stands for an unknown group."""
        names = tuple(sorted({group for group in groups if group is not None}))
        if len(names) < 2:
            raise InputError(f"data.groups: has {len(names)} groups, but clusters to begin with are at least 2")
        return GivenGroups(np.array([-1 if group is None else names.index(group) for group in groups]), names)


def by_mapping(mapping: Mapping[str, str], clients: Sequence[Any]) -> GivenGroups:
    """Return the groups of a mapping from client names, which has all clients and no others."""
    names = [str(client) for client in clients]
    for absent in (name for name in names if not mapping.get(name)):
        raise InputError(f"data.groups: has no group for client {absent!r}")
    for strange in (name for name in mapping if name not in set(names)):
        raise InputError(f"data.groups = {strange}={mapping[strange]}: there is no client {strange!r}")
    return GivenGroups.named([mapping[name] for name in names])


def by_column(
    column: str, groups: NDArray[Any], parts: Sequence[NDArray[np.int64]], clients: Sequence[Any]
) -> GivenGroups:
    """Return the groups of a column (samples,), which has one value for each client."""
    found = []
    for client, rows in zip(clients, parts, strict=True):
        values = np.unique(groups[rows]).tolist()
        if len(values) > 1:
            shown = ", ".join(map(str, values[:5]))
            raise InputError(f"data.groups = {column!r}: client {client} has rows of {len(values)} groups ({shown})")
        found.append(str(values[0]))
    return GivenGroups.named(found)
