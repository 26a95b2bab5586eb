"""What the server's `register.sh` runs: the SuperLink lets in the keys that are valid, and no others of a name."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Protocol

import click
import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import flwr_cli_exc_handler, init_http_client_from_connection
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.constant import NodeStatus
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from hcfl.errors import InputError
from hcfl.flower import key_folder
from hcfl.flower.key_folder import NodeKey

CONNECTION = "site"
"""The name of the SuperLink in the file that `connection.sh` writes."""


@dataclass(frozen=True)
class Node:
    """A key as the SuperLink knows it: it never forgets one, so a key that was put out cannot come back."""

    number: int
    name: str
    fingerprint: str
    member: bool
    """Whether it is let in, connected or not."""


class Registry(Protocol):
    """Who is let in."""

    def nodes(self) -> Sequence[Node]:
        """Return all keys that were ever let in."""

    def let_in(self, key: NodeKey) -> None:
        """Let a key in under its name."""

    def put_out(self, number: int) -> None:
        """Keep a node out from now on."""


@dataclass(frozen=True)
class Said:
    """What happened to a key."""

    text: str
    done: bool = True
    """Not if the key was refused."""


def settle(folder: Path, registry: Registry, replaced: Sequence[str] = ()) -> Iterator[Said]:
    """Let in the valid keys of a folder, and put out the revoked ones; of names in `replaced`, all others, too."""
    found = key_folder.read(folder)
    revoked = {key.fingerprint for key in found if key.revoked}
    for key in found:
        if not key.revoked:
            yield from _settle_valid(key, revoked, registry, key.name in replaced)
    names = {key.fingerprint: key.name for key in found}
    for node in registry.nodes():
        if node.member and node.fingerprint in revoked:
            registry.put_out(node.number)
            yield Said(f"{names[node.fingerprint]}: its old key {node.fingerprint} is out")
    for name in sorted({key.name for key in found} - {key.name for key in found if not key.revoked}):
        yield Said(f"{name}: is revoked; let it in again with a new key: hcfl deploy rotate SITE {name}")


def _settle_valid(key: NodeKey, revoked: set[str], registry: Registry, replace: bool) -> Iterator[Said]:
    """Let in a key if no other has its name; the revoked keys of the name do not count, they are put out later."""
    nodes, name = registry.nodes(), key.name
    known = next((node for node in nodes if node.fingerprint == key.fingerprint), None)
    others = [node for node in nodes if node.member and node.name == name and node is not known]
    strangers = [node for node in others if node.fingerprint not in revoked]
    if known is not None and not known.member:
        yield Said(
            f"{name}: its key {key.fingerprint} is revoked; "
            f"let it in again with a new one: hcfl deploy rotate SITE {name}"
        )
    elif known is not None and known.name != name:
        yield Said(
            f"{name}: the key {key.fingerprint} is refused: it is let in as {known.name!r}; "
            f"a new key is made by hcfl deploy rotate SITE {name}",
            done=False,
        )
    elif strangers and not replace:
        yield Said(
            f"{name}: the key {key.fingerprint} is refused: {strangers[0].fingerprint} is let in under this name, and "
            f"one name has one key; a new key is made by hcfl deploy rotate SITE {name}, and "
            f"./register.sh --replace {name} puts all others out",
            done=False,
        )
    else:
        if known is None:
            registry.let_in(key)
        yield Said(f"{name}: is let in" if known is None else f"{name}: was let in before")
        for node in strangers:
            registry.put_out(node.number)
            yield Said(f"{name}: the key {node.fingerprint} is out")


class SuperLink:
    """The SuperLink of this site, by the same calls as `flwr supernode`, which does not show names and keys."""

    def __init__(self) -> None:
        """Connect as `flwr` does."""
        connection = read_superlink_connection(CONNECTION)
        self._address = connection.address
        with redirect_stdout(StringIO()):
            self._client = init_http_client_from_connection(connection)

    def nodes(self) -> Sequence[Node]:
        """Return all keys that were ever registered."""
        with self._asking():
            answer = self._client.ListNodes(ListNodesRequest())
        return [
            Node(info.node_id, info.name, _fingerprint(info.public_key), info.status != NodeStatus.UNREGISTERED)
            for info in answer.nodes_info
        ]

    def let_in(self, key: NodeKey) -> None:
        """Register a key."""
        with self._asking():
            self._client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key.public), name=key.name))

    def put_out(self, number: int) -> None:
        """Unregister a node."""
        with self._asking():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=number))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Say in one sentence why there is no answer."""
        try:
            with flwr_cli_exc_handler(self._absent):
                yield
        except click.ClickException as error:
            raise InputError(f"the SuperLink says: {error.message}") from None

    def _absent(self, error: Exception) -> None:
        if isinstance(error, httpx.RequestError):
            raise InputError(f"the SuperLink does not answer at {self._address}; start it with ./start.sh") from None


@cache
def _fingerprint(pem: bytes) -> str:
    public = load_pem_public_key(pem) if pem else None
    return key_folder.fingerprint(public) if isinstance(public, ec.EllipticCurvePublicKey) else ""


def main(arguments: Sequence[str]) -> int:
    """Register the keys of the folder `keys`; return the exit code."""
    if arguments and (len(arguments) != 2 or arguments[0] != "--replace"):
        print("register.sh: usage: ./register.sh [--replace NAME]", file=sys.stderr)
        return 2
    code = 0
    try:
        for said in settle(Path("keys"), SuperLink(), arguments[1:]):
            print(said.text, file=sys.stdout if said.done else sys.stderr, flush=True)
            code = code if said.done else 1
    except InputError as error:
        print(f"register.sh: {error}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
