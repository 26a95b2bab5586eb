"""Reads the JSON files of run folders, which may be damaged or come from another user."""

import json
from pathlib import Path
from typing import Any

from hcfl.errors import InputError
from hcfl.regular_files import check_regular


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one object."""
    return _object(_text(path), str(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a JSON-lines file, each an object; an empty list where there is no file."""
    text = _text(path) if path.exists() else ""
    lines = (line for line in text.split("\n")[:-1])
    return [_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _text(path: Path) -> str:
    check_regular(path)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is damaged, it is not text") from None


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what}: is damaged ({type(error).__name__}: {error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{what}: is damaged, it must hold an object")
    return value
