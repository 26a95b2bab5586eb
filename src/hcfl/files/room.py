"""What a file says it holds is compared with the memory there is, before any of it is taken."""

from hcfl.errors import InputError
from hcfl.machine import free_memory, in_words


def check_room(what: str, needed: int) -> None:
    """Refuse what cannot be held: a small file can claim, or unpack to, more than any machine has."""
    free = free_memory()
    if free is not None and needed > free:
        raise InputError(f"{what}: would take {in_words(needed)} of memory, but {in_words(free)} are free")
