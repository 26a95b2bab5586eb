"""The commands on a finished run: assign a new client, export a model. Thin, no logic."""

import argparse
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from hcfl.cli.settings import add_allow_code
from hcfl.errors import InputError


def add_commands(commands: Any) -> None:
    """Add them to the command line."""
    assign = commands.add_parser("assign", allow_abbrev=False, help="find the cluster of a client that never trained")
    assign.add_argument("folder", metavar="RUN", type=Path, help="a run folder")
    assign.add_argument(
        "--data", metavar="FILE", type=Path, required=True, help="its .npz (x and, if it has labels, y) or table"
    )
    assign.add_argument("--unlabelled", action="store_true", help="decide without y; it only measures the accuracy")

    export = commands.add_parser("export", allow_abbrev=False, help="write a model that other programs can serve")
    export.add_argument("folder", metavar="RUN", type=Path, help="a run folder")
    export.add_argument("--cluster", metavar="K", help="the model of this cluster, or")
    export.add_argument("--client", metavar="ID", help="the mixture, or the own model, of this client")
    export.add_argument("--format", help="onnx, torchscript or safetensors (default: what the file's name says)")
    for command in (assign, export):
        command.add_argument("--serve", help="the models of the best round (best, the default) or of the last (last)")
        add_allow_code(command, "the folder")
    export.add_argument("--out", metavar="FILE", type=Path, help="the file (default: in the run folder)")


@contextmanager
def told(console: Console) -> Iterator[None]:
    """Print what is worth knowing about a table as notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        console.print(f"Note: {warning.message}.", highlight=False, soft_wrap=True)


def assign(arguments: argparse.Namespace, console: Console) -> None:
    """Assign a new client to clusters and show them."""
    from hcfl.data.readers import npz
    from hcfl.report.assignment import assignments_table, show
    from hcfl.runs.load import load

    run = load(arguments.folder, allow_code=arguments.allow_code, serve=arguments.serve or "best")
    if run.federation.schema is not None:
        with told(console):
            show(run.assign(arguments.data, unlabelled=arguments.unlabelled), console)
        return
    arrays = npz.read(arguments.data, "data")
    if "x" not in arrays or not arrays.keys() <= {"x", "y", "client"}:
        raise InputError(
            f"data = {str(arguments.data)!r}: has {', '.join(arrays) or 'no arrays'}, "
            "but a newcomer's file has x, if it has labels y, and if it holds several newcomers client"
        )
    if "client" in arrays:
        found = run.assign_each(arrays["x"], arrays["client"], arrays.get("y"), unlabelled=arguments.unlabelled)
        console.print(assignments_table(found))
        return
    show(run.assign(arrays["x"], arrays.get("y"), unlabelled=arguments.unlabelled), console)


def export(arguments: argparse.Namespace, console: Console) -> None:
    """Write a model."""
    from hcfl.runs.load import load
    from hcfl.serving.export import SUFFIXES

    run = load(arguments.folder, allow_code=arguments.allow_code, serve=arguments.serve or "best")
    out = arguments.out
    if out is None:
        whose = f"client-{arguments.client}" if arguments.client is not None else f"cluster-{arguments.cluster or 0}"
        endings = {format: suffix for suffix, format in SUFFIXES.items()}
        out = arguments.folder / f"{whose.replace('/', '-')}{endings.get(arguments.format or 'onnx', '')}"
    path = run.export(out, arguments.format, cluster=arguments.cluster, client=arguments.client)
    console.print(f"Model: {path}", highlight=False, soft_wrap=True)
    console.print("It predicts as the run does (checked).", highlight=False)


COMMANDS = {"assign": assign, "export": export}
