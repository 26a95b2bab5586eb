"""What tests of `hcfl watch` share: small runs, and the server in a thread of its own."""

import asyncio
import socket
import threading
from contextlib import contextmanager

import uvicorn

from hcfl.data import Federation
from hcfl.watch.access import Access
from hcfl.watch.board import Board
from hcfl.watch.server import application
from helpers import blobs


def planted():
    """A federation of twelve clients in three groups that contradict each other."""
    x, y = blobs()
    return Federation.from_arrays(x, y, clients=12, partition="iid", beta=0.9, concepts=3, seed=1)


@contextmanager
def served(folders, token=None, names=()):
    """Serve the page of these folders; give its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    stopping = asyncio.Event()
    app = application(Board(tuple(folders)), Access.of(token, names), stopping)
    config = uvicorn.Config(app, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
        listener.close()
