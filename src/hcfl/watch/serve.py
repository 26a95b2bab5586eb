"""`hcfl watch`: checks what was asked for, says where the page is, and serves it until it is stopped."""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from rich.console import Console

from hcfl.errors import InputError
from hcfl.regular_files import check_regular
from hcfl.watch.access import Access, new_token
from hcfl.watch.board import Board
from hcfl.watch.server import application

MOST_CONNECTIONS = 256


def serve(
    folders: Sequence[Path],
    host: str,
    port: int,
    console: Console,
    token: bool = False,
    token_file: Path | None = None,
    names: Sequence[str] = (),
) -> None:
    """Serve the page of these folders until SIGINT or SIGTERM."""
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"folder = {str(folder)!r}: is not a folder; runs are written below runs/ by default")
    secret = _token(host, token, token_file)
    access = Access.of(secret, names)
    listener = _listening(host, port)
    shown = _shown_address(host, names, listener.getsockname()[1])
    console.print(f"Watching {', '.join(map(str, folders))}; Ctrl-C ends it.", highlight=False, soft_wrap=True)
    told = secret if secret is not None and token_file is None else None
    address = f"{shown}/?token={told}" if told else f"{shown}/"
    console.print(f"Page: {address}", highlight=False, soft_wrap=True)
    if secret is not None and token_file is not None:
        console.print(f"Visitors need the token in {token_file}: {shown}/?token=…", highlight=False, soft_wrap=True)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(Board(tuple(folders)), access, listener))


async def _serve(board: Board, access: Access, listener: socket.socket) -> None:
    stopping = asyncio.Event()
    config = uvicorn.Config(
        application(board, access, stopping),
        log_level="warning",
        access_log=False,  # addresses may hold the token
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    server.stopping = stopping
    await server.serve([listener])


class _Server(uvicorn.Server):
    """Uvicorn, which would wait for streams that never end; they are told to end with it."""

    stopping: asyncio.Event

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then everything else."""
        self.stopping.set()
        await super().shutdown(sockets)


def _token(host: str, wanted: bool, file: Path | None) -> str | None:
    """Return the token; one is drawn where the page can be reached from other machines."""
    if file is not None:
        return _from_file(file)
    return new_token() if wanted or not is_local(host) else None


def _from_file(file: Path) -> str:
    check_regular(file, f"token-file {file}")
    try:
        with file.open(encoding="utf-8") as opened:
            if os.name == "posix" and os.fstat(opened.fileno()).st_mode & 0o077:
                raise InputError(f"token-file {file}: other users can read it; chmod 600 {file}")
            return opened.read(4096).strip()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"token-file {file}: cannot be read ({error})") from None


def is_local(host: str) -> bool:
    """Whether only this machine can reach the host's address.

    >>> is_local("127.0.0.1"), is_local("localhost"), is_local("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1" if host == "localhost" else host, port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"host = {host!r}, port = {port}: cannot be served ({error.strerror or error}); choose another with --port"
        ) from None
    return listener


def _shown_address(host: str, names: Sequence[str], port: int) -> str:
    if names:
        return f"http://{names[0]}:{port}"
    if host in ("0.0.0.0", "::"):
        return f"http://{socket.gethostname()}:{port}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
