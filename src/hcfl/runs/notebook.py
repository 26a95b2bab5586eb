"""Progress in a notebook: a figure under the cell that grows as rounds end, and a line that says where the run is."""

import sys
import time
from html import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

from hcfl.config import Config
from hcfl.core.record import Record
from hcfl.runs.loop import OnRound
from hcfl.runs.progress import describe_round

SHARE = 0.02
"""The largest share of the time that goes into the figure."""


def progress(config: Config, path: Path) -> OnRound | None:
    """Return a function that shows each round under the running cell; None outside of notebooks."""
    if not in_notebook():
        return None
    from IPython import display

    from hcfl.report import live_figure  # it reads what runs write

    ipython: Any = display  # half of it has no types
    rounds, title, name = config.training.rounds, escape(config.method.name), f"hcfl-{uuid4().hex}"
    shown, due = list[Any](), 0.0

    def show(record: Record) -> None:
        nonlocal due
        began, last = time.monotonic(), record.round == rounds
        if not shown:
            shown.append(ipython.display(ipython.HTML(live_figure.frame(name, None)), display_id=True))
            shown.append(ipython.display(ipython.HTML(""), display_id=True))
        news = ""
        if last:  # with its data inside, so that a notebook that was saved has it, too
            shown[0].update(ipython.HTML(live_figure.frame(name, live_figure.data_of(path))))
        elif began >= due and (data := live_figure.data_of(path)) is not None:
            news = live_figure.message(name, data)
        bar = f"<progress value='{record.round}' max='{rounds}'></progress> {record.round}/{rounds}"
        shown[1].update(ipython.HTML(f"<div><b>{title}</b> {bar} {describe_round(record)}</div>{news}"))
        if news:
            due = time.monotonic() + (time.monotonic() - began) / SHARE

    return show


def in_notebook() -> bool:
    """Whether this program runs in a notebook's kernel; IPython is never imported to find out."""
    module = sys.modules.get("IPython")
    return module is not None and hasattr(module.get_ipython(), "kernel")
