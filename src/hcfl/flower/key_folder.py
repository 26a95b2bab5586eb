"""The nodes' public keys as files: `NAME.pub` holds the key of a name, `NAME.revoked` those that it had before."""

import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from hcfl.errors import InputError
from hcfl.flower import keys

VALID, REVOKED = ".pub", ".revoked"
"""How the names of the files end."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""A client's name, which is also the name of files and stands in scripts."""

NAME_RULE = (
    "a name is made of letters, digits, dots, dashes and underscores, at most 63, and begins with a letter or a digit"
)


@dataclass(frozen=True)
class NodeKey:
    """A public key of a client."""

    name: str
    public: ec.EllipticCurvePublicKey
    since: str = ""
    """When it was made; nothing where a site of version 0.1 does not say."""
    until: str = ""
    """When it was revoked; nothing while it is valid."""

    @property
    def revoked(self) -> bool:
        """Whether it must not be let in."""
        return bool(self.until)

    @property
    def fingerprint(self) -> str:
        """The key in short, as `ssh-keygen -l` shows it."""
        return fingerprint(self.public)

    @property
    def line(self) -> str:
        """The key as a line in OpenSSH's format; the dates are part of its comment."""
        dates = [f"{field}={value}" for field, value in (("since", self.since), ("until", self.until)) if value]
        return keys.public_line(self.public, " ".join([self.name, *dates]))


def fingerprint(public: ec.EllipticCurvePublicKey) -> str:
    """Return a key in short, as `ssh-keygen -l` shows it."""
    return "SHA256:" + b64encode(sha256(keys.public_blob(public)).digest()).decode().rstrip("=")


def now() -> str:
    """Return the time as it stands in the files."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(folder: Path) -> list[NodeKey]:
    """Return all keys, by name, those of a name from the oldest on; a key that was revoked is revoked for good."""
    try:
        revoked = {key.fingerprint: key for key in _read(folder, REVOKED)}
        valid = [key for key in _read(folder, VALID) if key.fingerprint not in revoked]
    except OSError as error:
        raise InputError(f"{str(error.filename)!r}: cannot be read ({error.strerror})") from None
    return sorted([*revoked.values(), *valid], key=lambda key: (key.name, not key.revoked, key.since))


def revoke(folder: Path, name: str) -> None:
    """Put the key of a name on the list of those that it had, if it has one."""
    path = folder / f"{name}{VALID}"
    if not path.exists():
        return
    key = replace(_key(path, path.read_bytes()), until=now())
    with (folder / f"{name}{REVOKED}").open("a", encoding="ascii") as file:
        file.write(key.line)
    path.unlink()  # last: a key that is in both files is revoked


def _read(folder: Path, ending: str) -> Iterator[NodeKey]:
    for path in sorted(folder.glob(f"*{ending}")):
        name = path.name.removesuffix(ending)
        if not NAME.fullmatch(name):
            raise InputError(f"{str(path)!r}: {NAME_RULE}")
        lines = path.read_bytes().splitlines() if ending == REVOKED else [path.read_bytes()]
        for line in lines:
            key = _key(path, line)
            yield replace(key, until=key.until or "?") if ending == REVOKED else replace(key, until="")


def _key(path: Path, line: bytes) -> NodeKey:
    """Return the key in a line of a file; its name is the file's."""
    try:
        public = load_ssh_public_key(line)
        words = line.decode("ascii").split()
    except (ValueError, UnsupportedAlgorithm):
        public, words = None, []
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise InputError(f"{str(path)!r}: is not the public key of a node")
    dates = dict(word.split("=", 1) for word in words[3:] if "=" in word)
    return NodeKey(path.stem, public, dates.get("since", ""), dates.get("until", ""))
