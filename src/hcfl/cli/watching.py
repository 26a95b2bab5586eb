"""The command that serves the live page. Thin, no logic."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from hcfl.cli.settings import count


def add_commands(commands: Any) -> None:
    """Add it to the command line."""
    watch = commands.add_parser("watch", allow_abbrev=False, help="show runs and deployments live, as a web page")
    watch.add_argument("folders", metavar="FOLDER", type=Path, nargs="*", help="where runs are (default runs/)")
    watch.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    watch.add_argument("--port", default=8642, help="the port (default 8642)")
    watch.add_argument("--token", action="store_true", help="ask for a token; always the case for other machines")
    watch.add_argument("--token-file", metavar="FILE", type=Path, help="ask for the token in this file")
    watch.add_argument(
        "--name", metavar="NAME", action="append", default=[], help="another name of this machine; may be repeated"
    )


def watch(arguments: argparse.Namespace, console: Console) -> None:
    """Serve the page until it is stopped."""
    from hcfl import watch as watching

    watching.require()
    from hcfl.runs.folder import RUNS
    from hcfl.watch.serve import serve

    serve(
        arguments.folders or [RUNS],
        arguments.host,
        count("port", arguments.port),
        console,
        arguments.token,
        arguments.token_file,
        arguments.name,
    )


COMMANDS = {"watch": watch}
