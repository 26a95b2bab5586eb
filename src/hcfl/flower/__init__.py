"""On Flower: the same clients, server and rounds on many machines. Only in here is `flwr` imported."""

from importlib.util import find_spec

from hcfl.errors import InputError


def require(asked: str) -> None:
    """Say how to get Flower, where it is not installed; `asked` is what needs it."""
    if find_spec("flwr") is None:
        raise InputError(f"{asked}: needs the extra, pip install 'hcfl[flower]'")
