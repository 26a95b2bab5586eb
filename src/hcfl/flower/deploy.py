"""`hcfl deploy`: everything that a site needs to run a federation on real clients, as one folder of plain files."""

import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from hcfl.errors import InputError
from hcfl.flower import key_folder, keys
from hcfl.flower.key_folder import NAME, NAME_RULE, NodeKey

SITE = "site.json"
"""What `add` needs to know of a site."""

KEYS = Path("server", "keys")
"""The nodes' public keys, in a site."""

HOST, PORT, FRONT_PORT, NODE_PORT, WATCH_PORT, DAYS = "127.0.0.1", 9090, 9443, 9094, 8642, 825
"""Where things are unless told otherwise."""

PORTS = ("port", "front_port", "node_port")

PROGRAMS = {
    "superlink": "hcfl: Flower SuperLink",
    "superexec": "hcfl: Flower SuperExec",
    "front": "hcfl: the door for nodes",
    "watch": "hcfl: the live page, for the operator",
}

LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Site:
    """Where a federation's server is, and the names of its clients."""

    clients: tuple[str, ...]
    host: str = HOST
    port: int = PORT
    """Of the SuperLink, on the server itself only."""
    front_port: int = FRONT_PORT
    """Where nodes come in."""
    node_port: int = NODE_PORT
    """Of the first client, for its own processes; the next client has the next one, since they may share a machine."""
    days: int = DAYS

    @property
    def address(self) -> str:
        """Where nodes go."""
        ip = _ip(self.host)
        return f"{self.host if ip is None else _in_url(ip)}:{self.front_port}"

    @property
    def listen(self) -> str:
        """Where nginx listens: on this machine only if the host is this machine, else on all addresses of its kind."""
        ip = _ip("127.0.0.1" if self.host.lower() == "localhost" else self.host)
        if ip is not None and ip.is_loopback:
            return f"{_in_url(ip)}:{self.front_port}"
        return f"[::]:{self.front_port}" if isinstance(ip, IPv6Address) else str(self.front_port)


def init(folder: Path, site: Site, force: bool = False) -> None:
    """Write a new site: an authority, the server's folder, a folder for every client."""
    check(site)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not force:
        raise InputError(f"folder = {str(folder)!r}: is not empty; choose another, or replace its keys with --force")
    authority_key, server_key = keys.new_key(), keys.new_key()
    authority = keys.authority(authority_key, site.days)
    hosts = list(dict.fromkeys([site.host, "localhost", "127.0.0.1"]))
    certificate = keys.server_certificate(authority, authority_key, server_key, hosts, site.days)
    values = {
        "host": site.host,
        "port": site.port,
        "front_port": site.front_port,
        "listen": site.listen,
        "watch_port": WATCH_PORT,
        "days": site.days,
        "clients": ", ".join(site.clients),
    }
    with _writing(folder):
        for old in sorted((folder / KEYS).glob(f"*{key_folder.VALID}")):
            key_folder.revoke(folder / KEYS, old.stem)
        _write(folder / "authority" / "ca.key", keys.tls_key_file(authority_key), 0o600)
        _write(folder / "authority" / "ca.crt", keys.certificate_file(authority))
        _write(folder / "README.md", _filled("README.md", **values))
        server = folder / "server"
        _write(server / "ca.crt", keys.certificate_file(authority))
        _write(server / "server.crt", keys.certificate_file(certificate))
        _write(server / "server.key", keys.tls_key_file(server_key), 0o600)
        _write(server / "superexec.secret", secrets.token_hex(32).encode(), 0o600)
        _write(server / "watch.token", secrets.token_urlsafe(32).encode(), 0o600)
        _write(server / "nginx.conf", _filled("server/nginx.conf", **values))
        for script in ("superlink", "superexec", "front", "watch", "start", "register", "connection", "run", "resume"):
            _write(server / f"{script}.sh", _filled(f"server/{script}.sh", **values), 0o755)
        for program, description in PROGRAMS.items():
            unit = _filled("server/hcfl.service", program=program, description=description)
            _write(server / f"hcfl-{program}.service", unit)
        _write(server / "app" / "pyproject.toml", app() + _filled("app-config.toml", names=", ".join(site.clients)))
        _shared(server)
        _clients(folder, site, site.clients, authority=keys.certificate_file(authority))


def add(folder: Path, clients: Sequence[str]) -> None:
    """Add clients to a site; existing files stay as they are."""
    before, authority = _open(folder)
    for client in clients:
        if client in before.clients:
            raise InputError(
                f"clients = {client!r}: is a client of this site, and one name has one key; "
                f"a new key is made by hcfl deploy rotate {folder} {client}"
            )
    site = replace(before, clients=(*before.clients, *clients))
    check(site)
    with _writing(folder):
        _clients(folder, site, clients, authority)


def rotate(folder: Path, client: str) -> NodeKey:
    """Give a client a new key; the old one stays out once the server has registered the new one."""
    site, authority = _open(folder)
    _check_client(site, client)
    with _writing(folder):
        if not (folder / "clients" / client / "start.sh").exists():
            _client(folder, site, client, authority)
        return _new_key(folder, client)


def revoke(folder: Path, client: str) -> NodeKey:
    """Keep a client out, once the server's `register.sh` ran again; it keeps its name."""
    site, _ = _open(folder)
    _check_client(site, client)
    mine = [key for key in listed(folder) if key.name == client]
    if not mine or mine[-1].revoked:
        when = f"; it was revoked at {mine[-1].until}" if mine else ""
        raise InputError(f"client = {client!r}: has no valid key{when}")
    with _writing(folder):
        key_folder.revoke(folder / KEYS, client)
    return mine[-1]


def listed(folder: Path) -> list[NodeKey]:
    """Return all keys of a site, valid and revoked."""
    _open(folder)
    return key_folder.read(folder / KEYS)


def listing(folder: Path) -> list[str]:
    """Return a line for each key: name, fingerprint, since when, valid or revoked."""
    found = listed(folder)
    width = max((len(key.name) for key in found), default=0)
    return [
        f"{key.name:{width}}  {key.fingerprint}  {key.since or '-':20}  "
        + (f"revoked {key.until}" if key.revoked else "valid")
        for key in found
    ]


def after_rotation(folder: Path, key: NodeKey) -> list[str]:
    """Say what is left to do when a client has a new key."""
    return [
        f"New key of {key.name}: {key.fingerprint}",
        f"Next: hand {folder / 'clients' / key.name / 'node.key'} to the client over a channel that you trust, "
        f"copy the files of {folder / KEYS} to the server, and run ./register.sh there; then the old key is out",
    ]


def after_revocation(folder: Path, key: NodeKey) -> list[str]:
    """Say what is left to do when a client is to be kept out."""
    return [
        f"Revoked key of {key.name}: {key.fingerprint}",
        f"Next: copy the files of {folder / KEYS} to the server, and run ./register.sh there; then the key is out",
    ]


def check(site: Site) -> None:
    """Say in one sentence what is wrong with a site's settings."""
    if not site.clients:
        raise InputError("clients = none: name at least one client")
    for client in site.clients:
        if not NAME.fullmatch(client):
            raise InputError(f"clients = {client!r}: {NAME_RULE}")
    seen: set[str] = set()
    for client in site.clients:
        if client.lower() in seen:
            raise InputError(f"clients = {client!r}: two clients have this name; some disks do not tell a from A")
        seen.add(client.lower())
    if not _is_host(site.host):
        raise InputError(f"host = {site.host!r}: must be a name such as fl.example.org, or an address")
    last = site.node_port + len(site.clients) - 1
    for name, port in {"port": site.port, "front-port": site.front_port, "node-port": last}.items():
        if not 1 <= port <= 65535:
            raise InputError(f"{name} = {port}: must be from 1 to 65535")
    if site.port == site.front_port:
        raise InputError(f"front-port = {site.front_port}: must differ from port, which nodes must not reach")


def app() -> bytes:
    """Return the `pyproject.toml` of the Flower app, up to its settings."""
    from hcfl import __version__

    return _filled("app.toml", version=__version__)


def _open(folder: Path) -> tuple[Site, bytes]:
    """Return a site that is there, and its authority's certificate."""
    try:
        values = json.loads((folder / SITE).read_text(encoding="utf-8"))
        site = Site(**{**values, "clients": tuple(values["clients"])})
        authority = (folder / "server" / "ca.crt").read_bytes()
    except (OSError, ValueError, TypeError, KeyError):
        raise InputError(f"folder = {str(folder)!r}: is not a site that `hcfl deploy init` wrote") from None
    check(site)
    return site, authority


def _check_client(site: Site, client: str) -> None:
    if client not in site.clients:
        raise InputError(f"client = {client!r}: is no client of this site, which has {', '.join(site.clients)}")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"folder = {str(folder)!r}: cannot be written ({error.strerror})") from None


def _clients(folder: Path, site: Site, names: Sequence[str], authority: bytes) -> None:
    """Write the folders of some clients, their public keys for the server, and what `add` needs next time."""
    for name in names:
        _client(folder, site, name, authority)
        _new_key(folder, name)
    _write(folder / SITE, (json.dumps(asdict(site), indent=1) + "\n").encode())


def _client(folder: Path, site: Site, name: str, authority: bytes) -> None:
    """Write the folder of a client, all but its key."""
    home = folder / "clients" / name
    values = {"name": name, "address": site.address, "node_port": site.node_port + site.clients.index(name)}
    _write(home / "ca.crt", authority)
    _write(home / "start.sh", _filled("client/start.sh", **values), 0o755)
    _write(home / f"hcfl-node-{name}.service", _filled("client/hcfl-node.service", **values))
    _write(home / "README.md", _filled("client/README.md", **values))
    _shared(home)


def _new_key(folder: Path, name: str) -> NodeKey:
    """Draw the key of a client and revoke the one that it had: one name, one key."""
    private = keys.new_key()
    key = NodeKey(name, private.public_key(), key_folder.now())
    key_folder.revoke(folder / KEYS, name)
    _write(folder / "clients" / name / "node.key", keys.node_key_file(private), 0o600)
    _write(folder / KEYS / f"{name}{key_folder.VALID}", key.line.encode())
    return key


def _shared(home: Path) -> None:
    _write(home / "environment", _filled("environment"))
    _write(home / "supervise.sh", _filled("supervise.sh"), 0o755)


def _filled(template: str, **values: object) -> bytes:
    """Return a template of `site/` with its {{names}} replaced."""
    text = (files("hcfl.flower") / "site" / template).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", str(value))
    return text.encode()


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file that no other user can read before it has its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    path.chmod(mode)  # whatever the user's umask takes away


def _is_host(host: str) -> bool:
    if _ip(host) is not None:
        return "%" not in host  # the zone of an address is this machine's own, and may be any text
    labels = host.split(".")
    return len(host) <= 253 and all(map(LABEL.fullmatch, labels)) and not labels[-1].isdecimal()


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    """Return a host as an address, or None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _in_url(ip: IPv4Address | IPv6Address) -> str:
    return f"[{ip}]" if isinstance(ip, IPv6Address) else str(ip)
