"""Reads YAML files of settings: plain values only, with limits on their size, since files may come from other users."""

from pathlib import Path
from typing import Any

import yaml

from hcfl.errors import InputError
from hcfl.regular_files import check_regular

MAX_BYTES = 1 << 20
"""The largest file of settings; the largest experiment takes a hundredth of it."""

MAX_VALUES = 10_000
"""The largest number of values, aliases counted as often as they are used: a few lines can stand for billions."""

MALFORMED = (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError, OverflowError)
"""Errors of the parser on malformed text: invalid dates, endless brackets, tags on values of another type."""


def read_yaml(path: Path, role: str = "config") -> dict[str, Any]:
    """Read a file of sections as nested values, not yet validated; `role` names the file in error messages."""
    check_regular(path, f"{role} {path}")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"{role} {path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{role} {path}: is not valid YAML") from None
    if len(content) > MAX_BYTES:
        raise InputError(f"{role} {path}: has more than {MAX_BYTES} bytes, which is no file of settings")
    return parse(text, f"{role} {path}")


def parse(text: str, what: str) -> dict[str, Any]:
    """Parse YAML text into nested values; `what` names it in error messages."""
    try:
        values = yaml.safe_load(text)
    except MALFORMED as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise InputError(f"{what}: is not valid YAML{line}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{what}: must hold sections such as `data:` and `training:`")
    if not _within_limit(values):
        raise InputError(f"{what}: has more than {MAX_VALUES} values, which is no file of settings")
    return values


def _within_limit(values: Any) -> bool:
    """Whether there are at most MAX_VALUES values at all depths; a value that contains itself has more."""
    seen, waiting = 0, [values]
    while waiting and seen <= MAX_VALUES:
        value = waiting.pop()
        seen += 1
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
    return seen <= MAX_VALUES
