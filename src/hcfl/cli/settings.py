"""Settings on the command line: a flag for each, a file, and `--set`, as one configuration."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from hcfl.config import Config, assign, field_at, flat_fields
from hcfl.config.plugins import check_trusted
from hcfl.config.yaml_files import read_yaml
from hcfl.errors import InputError


def add_settings(parser: argparse.ArgumentParser, sections: Sequence[str] = ()) -> None:
    """Add a flag for every setting of the configuration, or of some sections of it."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, path in flat_fields().items():
        section = path.split(".")[0] if "." in path else "everything else"
        if name == "method" or (sections and path.split(".")[0] not in sections):
            continue
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        field = field_at(path)
        default = "" if field.default is None else f" (default {field.default})"
        words = _words(field.annotation)
        choices = f" [{', '.join(words)}]" if words and not all(word in field.description for word in words) else ""
        groups[section].add_argument(
            f"--{name.replace('_', '-')}",
            dest=path,
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=f"{field.description}{choices}{default}".replace("%", "%%"),
        )
    parser.add_argument("--config", metavar="FILE", type=Path, help="a YAML file; flags win over it")
    add_allow_code(parser, "the file")
    parser.add_argument(
        "--set",
        metavar="A.B=C",
        action="append",
        default=[],
        help="set any field by its path; may be repeated",
    )


def _words(kind: Any) -> list[str]:
    """Return the words that a setting takes, where it takes only certain ones."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return [str(word) for one in kinds if get_origin(one) is Literal for word in get_args(one)]


FIRST = ("data", "clients", "alpha", "beta", "rounds", "epochs", "lr", "clusters", "model", "seed")
"""The flags that users need first; `-h` shows them, `--help` all."""


class ShortHelp(argparse.Action):
    """`-h`: the usage and the flags that users need first."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help="the first flags")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Print it and exit."""
        paths = flat_fields()
        lines = [
            f"usage: {parser.prog} METHOD [FLAGS]",
            "",
            f"The first of its flags; {parser.prog} --help has all:",
            "",
        ]
        for name in FIRST:
            field = field_at(paths[name])
            default = "" if field.default is None else f" (default {field.default})"
            lines.append(f"  --{name.replace('_', '-'):10} {field.description}{default}")
        lines += ["", f"Example: {parser.prog} hcfl++ --data digits --rounds 30"]
        parser.exit(0, "\n".join(lines) + "\n")


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add `-h` for the first flags and `--help` for all; the parser must have neither yet."""
    parser.usage = f"{parser.prog} METHOD [FLAGS]"
    parser.add_argument("-h", action=ShortHelp)
    parser.add_argument("--help", action="help", help="all flags, by section")


def add_allow_code(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--allow-code`, without which code that a file names does not run."""
    parser.add_argument("--allow-code", action="store_true", help=f"run the Python code that {what} names, if it does")


def config_of(arguments: argparse.Namespace, changes: Sequence[tuple[str, Any]] = ()) -> Config:
    """Read the file, then flags, then `--set`, then changes; what comes later wins."""
    values: dict[str, Any] = {} if arguments.config is None else read_yaml(arguments.config)
    check_trusted(f"config {arguments.config}", values, arguments.allow_code)
    if getattr(arguments, "method", None) is not None:
        in_file = values.get("method")
        if isinstance(in_file, dict) and in_file.get("name") != arguments.method:
            values["method"] = {}  # the settings of another method
        assign(values, "method.name", arguments.method)
    in_file = values.get("data")
    chosen = getattr(arguments, "data.scenario", None)
    if chosen is not None and isinstance(in_file, dict) and in_file.get("scenario") not in (None, chosen):
        raise InputError(
            f"data.scenario = {chosen!r}: {arguments.config} has the settings of {in_file['scenario']}, which would win"
        )
    for path in flat_fields().values():
        if (value := getattr(arguments, path, None)) is not None:
            assign(values, path, value)
    if getattr(arguments, "source", None) is not None:
        assign(values, "data.source", arguments.source)
    for path, value in (*changes_of(arguments.set), *changes):
        assign(values, path, value)
    return Config.parse(values)


def changes_of(settings: Sequence[str]) -> list[tuple[str, Any]]:
    """Parse the values of `--set`: A.B=C."""
    changes = []
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: must look like data.alpha=0.5")
        changes.append((path, None if value == "null" else value))
    return changes


def count(name: str, value: Any) -> int:
    """Parse a whole number from 1 on."""
    if not str(value).isdecimal() or int(value) < 1:
        raise InputError(f"--{name} {value}: must be a whole number from 1 on")
    return int(value)
