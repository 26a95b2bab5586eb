"""The nodes of a deployment, as the server last wrote them into `nodes.json`."""

import json
import shlex
from pathlib import Path
from typing import Any

from hcfl.core.record import Row
from hcfl.runs.folder import NODES, STOP
from hcfl.watch.files import Place

MOST_BYTES = 8 << 20

LONGEST = 500
"""Letters of a reason that are shown."""

LATE = 30.0
"""Seconds after which a server that has written nothing counts as gone."""


def read(place: Place) -> Row | None:
    """Return the nodes with what the server does now; None where the folder has none, or the file is damaged."""
    try:
        found = json.loads(place.read(NODES, MOST_BYTES))
        now = found["now"]
        return {
            "about": {key: found["about"][key] for key in ("method", "data", "seed", "rounds")},
            "written": float(found["written"]),
            "quorum": float(found["quorum"]),
            "now": {
                "doing": str(now["doing"]),
                "round": int(now["round"]),
                "since": float(now["since"]),
                "asked": [str(name) for name in now["asked"]],
                "waiting": [str(name) for name in now["waiting"]],
                "needed": int(now["needed"]),
            },
            "nodes": [_node(name, node) for name, node in found["nodes"].items()],
            "strangers": [[str(name)[:LONGEST], str(reason)[:LONGEST]] for name, reason in found["strangers"]],
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError):
        return None


def _node(name: str, node: Any) -> Row:
    return {
        "name": name[:LONGEST],
        "connected": bool(node["connected"]),
        "seen": None if node["seen"] is None else float(node["seen"]),
        "round": int(node["round"]),
        "missed": int(node["missed"]),
        "reason": str(node["reason"])[:LONGEST],
        "refused": str(node["refused"])[:LONGEST],
        "val": [[int(round_), float(value)] for round_, value in node["val"]],
        "clusters": [[int(round_), int(cluster)] for round_, cluster in node["clusters"]],
    }


def commands(path: Path, under_way: bool) -> list[tuple[str, str]]:
    """Return the operator's commands: end a run after its round, or go on with one that ended."""
    if under_way:
        return [("stop after this round", f"touch {shlex.quote(str(path / STOP))}")]
    script = path.parent.parent / "resume.sh"
    if script.is_file():
        return [("resume", f"{shlex.quote(str(script))} {shlex.quote(str(path))}")]
    return [("resume, in the folder server/ of the site", f"./resume.sh {shlex.quote(str(path))}")]
