"""The command line; thin."""

from hcfl.cli.command import COMMANDS, build_parser, main

__all__ = ["COMMANDS", "build_parser", "main"]
