"""Reading YAML that people wrote."""

from pathlib import Path
from typing import Any

import yaml

from hcfl.errors import InputError


def read_yaml(path: Path, role: str = "config") -> dict[str, Any]:
    """Read a file of sections as nested values, not yet validated; `role` is what the file is called in complaints."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{role} {path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        raise InputError(f"{role} {path}: is not valid YAML{line}") from None
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InputError(f"{role} {path}: must hold sections such as `data:` and `training:`")
    return values
