"""What a run folder says of each client, as tables: who belongs where, and who holds what."""

from typing import Any

from hcfl.data import Federation
from hcfl.state import RunState


def client_rows(federation: Federation, state: RunState) -> list[list[Any]]:
    """Return `clients.csv`: who belongs where, beside the truth where it is known."""
    server, truth = state.server, federation.truth
    table: list[list[Any]] = [
        [
            "client",
            "samples",
            "true_concept",
            "cluster",
            "corruption",
            "severity",
            *(f"weight_{cluster}" for cluster in server.clusters),
        ]
    ]
    for client, name in enumerate(federation.client_names):
        column = int(server.members[client])
        corruption = None if federation.corruptions is None else federation.corruptions[client]
        table.append(
            [
                name,
                int(server.sizes[client]) or len(federation.train[client]),
                "" if truth is None else truth.names[truth.concept[client]],
                "" if column < 0 else server.clusters[column],
                "" if corruption is None else corruption.name,
                "" if corruption is None else corruption.severity,
                *(f"{weight:.6g}" for weight in server.weights[client].tolist()),
            ]
        )
    return table


def class_rows(federation: Federation) -> list[list[Any]]:
    """Return `classes.csv`: how many samples of each class each client holds; nothing where clients keep that."""
    table: list[list[Any]] = [["client", *federation.class_names]]
    if not len(federation.y):
        return table
    counts = federation.class_table().tolist()
    return table + [[name, *row] for name, row in zip(federation.client_names, counts, strict=True)]
