"""The commands that run many configurations: compare methods, sweep settings. Thin, no logic."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from hcfl.cli.settings import add_help, add_settings, config_of, count
from hcfl.errors import InputError


def add_commands(commands: Any) -> None:
    """Add them to the command line."""
    compare = commands.add_parser(
        "compare", allow_abbrev=False, add_help=False, help="run several methods over several seeds"
    )
    compare.add_argument("methods", metavar="METHOD", nargs="+", help="see `hcfl methods`; also 'ifca(clusters=2)'")
    sweep = commands.add_parser(
        "sweep", allow_abbrev=False, add_help=False, help="run a method with every combination of settings"
    )
    sweep.add_argument("method", metavar="METHOD", help="see `hcfl methods`")
    sweep.add_argument(
        "--grid", metavar="A=X,Y", action="append", required=True, help="a setting and its values; may be repeated"
    )
    for command in (compare, sweep):
        add_help(command)
        command.add_argument("--seeds", metavar="N", default=1, help="runs of each, seeds from --seed on (default 1)")
        command.add_argument("--workers", metavar="N", help="runs side by side (default: one for each core)")
        command.add_argument("--out", metavar="FOLDER", type=Path, help="where all goes (default runs/compare)")
        add_settings(command)


def compare(arguments: argparse.Namespace, console: Console) -> None:
    """Show methods side by side."""
    from hcfl.config import flat_fields
    from hcfl.report.comparison import show
    from hcfl.studies.comparison import with_settings

    for method in arguments.methods:
        if arguments.methods.count(method) > 1:
            raise InputError(f"METHOD {method}: is there twice")
    chosen = []
    for text in arguments.methods:
        arguments.method, own = with_settings(text)
        paths = flat_fields()
        for name in own:
            if name not in paths:
                raise InputError(f"METHOD {text}: there is no setting {name}")
        point = (("method", text),) if own else ()
        chosen.append((point, config_of(arguments, [(paths[name], value) for name, value in own.items()])))
    show("compare", "method", chosen, *_options(arguments), console)


def sweep(arguments: argparse.Namespace, console: Console) -> None:
    """Show the points of a grid side by side."""
    from hcfl.config.overrides import axis_of, points
    from hcfl.report.comparison import show

    chosen = []
    for point in points([axis_of(text) for text in arguments.grid]):
        changes = [(path, None if value == "null" else value) for _, path, value in point]
        chosen.append((tuple((name, value) for name, _, value in point), config_of(arguments, changes)))
    show("sweep", arguments.method, chosen, *_options(arguments), console)


def _options(arguments: argparse.Namespace) -> tuple[int, int | None, Path | None]:
    workers = None if arguments.workers is None else count("workers", arguments.workers)
    return count("seeds", arguments.seeds), workers, arguments.out


COMMANDS = {"compare": compare, "sweep": sweep}
