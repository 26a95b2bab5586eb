"""`hcfl watch`: a live page over run folders, read-only, from the files that runs write anyway."""

from importlib.util import find_spec

from hcfl.errors import InputError


def require() -> None:
    """Raise InputError if the extra is not installed."""
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise InputError("watch: needs the extra, pip install 'hcfl[watch]'")
