"""The command for the linear representation study. Thin, no logic."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from hcfl.theory.settings import StudySettings


def add_commands(commands: Any) -> None:
    """Add it to the command line."""
    theory = commands.add_parser(
        "theory", allow_abbrev=False, help="see why balance between clusters matters, beside the paper's bound"
    )
    for name, field in StudySettings.model_fields.items():
        several = isinstance(field.default, tuple)
        default = " ".join(f"{value:g}" for value in field.default) if several else field.default
        theory.add_argument(
            f"--{name}",
            metavar="VALUE",
            nargs="+" if several else None,
            default=argparse.SUPPRESS,
            help=f"{field.description} (default {default})",
        )
    theory.add_argument("--out", metavar="FOLDER", type=Path, help="where picture and numbers go (default runs/theory)")


def theory(arguments: argparse.Namespace, console: Console) -> None:
    """Run the study and show it."""
    from hcfl.report.theory import show

    given = {name: getattr(arguments, name) for name in StudySettings.model_fields if hasattr(arguments, name)}
    show(StudySettings.parse(given), arguments.out, console)


COMMANDS = {"theory": theory}
