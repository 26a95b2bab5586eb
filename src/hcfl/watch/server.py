"""The web server: one page, its script and style, and a stream of server-sent events. It only reads."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from hcfl.errors import InputError
from hcfl.report.page.write_page import FIGURES, html_of
from hcfl.watch.access import Access, Guard
from hcfl.watch.board import MOST_TOGETHER, Board, news_of_list, news_of_run

PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds between two looks of a stream."""

SHARE = 0.01
"""The largest share of its time that a stream computes: where a look takes long, the next one comes later."""

HEARTBEAT = 15.0
"""Seconds after which a stream without news says that it is still there."""

SCRIPTS = ("live", "list", "nodes", "watch")
"""The scripts of this page, after the figures of the report."""


def application(board: Board, access: Access, stopping: asyncio.Event | None = None) -> ASGIApp:
    """Return the server for these runs."""
    routes = [
        Route("/", _page),
        Route("/run/{id:path}", _page),
        Route("/compare", _page),
        Route("/report/{id:path}", _report),
        Route("/events", _events),
        Route("/watch.js", _script),
        Route("/watch.css", _style),
    ]
    app = Starlette(routes=routes)
    app.state.board, app.state.stopping = board, stopping or asyncio.Event()
    return Guard(app, access)


async def _page(request: Request) -> Response:
    return HTMLResponse(_text("watch.html"))


async def _script(request: Request) -> Response:
    return Response(_whole_script(), media_type="text/javascript")


async def _style(request: Request) -> Response:
    return Response(_report_text("page.css") + _text("watch.css"), media_type="text/css")


async def _report(request: Request) -> Response:
    """Send a run as one file, as `hcfl report` writes it."""
    board: Board = request.app.state.board
    id_ = request.path_params["id"]

    def write() -> str | None:
        folder = board.folder(id_)
        return None if folder is None else html_of([folder])

    try:
        page = await run_in_threadpool(write)
    except InputError as error:
        return PlainTextResponse(f"{error}\n", 409)
    if page is None:
        return PlainTextResponse("There is no such run.\n", 404)
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in PurePosixPath(id_).name)
    return HTMLResponse(page, headers={"Content-Disposition": f'attachment; filename="{name}.html"'})


async def _events(request: Request) -> Response:
    """Send the list of runs, or the runs that are asked for, and from then on what is new."""
    board: Board = request.app.state.board
    wanted = list(dict.fromkeys(request.query_params.getlist("run")))[:MOST_TOGETHER]
    news: list[Callable[[], str | None]] = [_news_of(board, id_) for id_ in wanted] or [_news_of(board, None)]
    stream = _stream(news, request.app.state.stopping)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _news_of(board: Board, id_: str | None) -> Callable[[], str | None]:
    sent: dict[str, str] = {}
    if id_ is None:
        return lambda: news_of_list(board, sent)
    return lambda: news_of_run(board, id_, sent)


async def _stream(news: list[Callable[[], str | None]], stopping: asyncio.Event) -> AsyncIterator[str]:
    spoke = time.monotonic()

    def look() -> tuple[str, float]:
        began = time.thread_time()
        found = "".join(filter(None, [one() for one in news]))
        return found, time.thread_time() - began

    while not stopping.is_set():
        found, cost = await run_in_threadpool(look)
        if not found and time.monotonic() - spoke >= HEARTBEAT:
            found = ": nothing new\n\n"
        if found:
            spoke = time.monotonic()
            yield found
        pause = min(LONGEST_PAUSE, max(PAUSE, cost / SHARE))
        try:
            await asyncio.wait_for(stopping.wait(), pause)
        except TimeoutError:
            continue


@cache
def _whole_script() -> str:
    """Return the report's figures and this page's own scripts, as one."""
    figures = [_report_text(f"js/{name}.js") for name in FIGURES]
    own = [_text(f"js/{name}.js") for name in SCRIPTS]
    return '"use strict";\n(() => {\n' + "".join((*figures, *own)) + "})();\n"


@cache
def _text(name: str) -> str:
    return (files("hcfl.watch") / "page" / name).read_text(encoding="utf-8")


@cache
def _report_text(name: str) -> str:
    return (files("hcfl.report.page") / name).read_text(encoding="utf-8")
