"""Progress in a notebook: a line under the cell that changes as rounds end."""

import sys
from html import escape
from typing import Any

from hcfl.config import Config
from hcfl.core.record import Record
from hcfl.runs.loop import OnRound
from hcfl.runs.progress import describe_round


def progress(config: Config) -> OnRound | None:
    """Return a function that shows each round under the running cell; None outside of notebooks."""
    if not in_notebook():
        return None
    from IPython import display

    ipython: Any = display  # half of it has no types
    rounds, title, line = config.training.rounds, escape(config.method.name), list[Any]()

    def show(record: Record) -> None:
        bar = f"<progress value='{record.round}' max='{rounds}'></progress> {record.round}/{rounds}"
        page = ipython.HTML(f"<div><b>{title}</b> {bar} {describe_round(record)}</div>")
        if line:
            line[0].update(page)
        else:
            line.append(ipython.display(page, display_id=True))

    return show


def in_notebook() -> bool:
    """Whether this program runs in a notebook's kernel; IPython is never imported to find out."""
    module = sys.modules.get("IPython")
    return module is not None and hasattr(module.get_ipython(), "kernel")
