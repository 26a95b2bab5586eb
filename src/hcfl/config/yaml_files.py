"""Reading YAML that people wrote: plain values only, and no more of them than settings can be."""

from pathlib import Path
from typing import Any

import yaml

from hcfl.errors import InputError

LARGEST = 1 << 20
"""Bytes of a file of settings. Those of the largest experiment are a hundredth of it."""

MOST = 10_000
"""Values in a file, each counted as often as it is referred to: a few lines of aliases can stand for billions."""

MALFORMED = (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError, OverflowError)
"""What YAML raises that is none: dates of no calendar, brackets without end, tags on what they do not fit."""


def read_yaml(path: Path, role: str = "config") -> dict[str, Any]:
    """Read a file of sections as nested values, not yet validated; `role` is what the file is called in complaints."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise InputError(f"{role} {path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise InputError(f"{role} {path}: is not valid YAML") from None
    if len(content) > LARGEST:
        raise InputError(f"{role} {path}: has more than {LARGEST} bytes, which is no file of settings")
    return parse(text, f"{role} {path}")


def parse(text: str, what: str) -> dict[str, Any]:
    """Return sections from text; `what` is its name in complaints."""
    try:
        values = yaml.safe_load(text)
    except MALFORMED as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise InputError(f"{what}: is not valid YAML{line}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{what}: must hold sections such as `data:` and `training:`")
    if not _few(values):
        raise InputError(f"{what}: has more than {MOST} values, which is no file of settings")
    return values


def _few(values: Any) -> bool:
    """Whether there are at most so many values, however deep; references to oneself never end."""
    seen, waiting = 0, [values]
    while waiting and seen <= MOST:
        value = waiting.pop()
        seen += 1
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
    return seen <= MOST
