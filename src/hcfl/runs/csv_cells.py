"""Cells of CSV files that no spreadsheet takes for a formula: names may come from other users."""

from typing import TypeVar

T = TypeVar("T")

MARK = "'"
"""What stands before such text; spreadsheets show the rest."""

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""How text begins that spreadsheets take for a formula."""

MARKED = (*FORMULAS, MARK)
"""How text begins that gets a mark: a mark of its own stays recognisable."""


def safe(cell: T) -> T | str:
    """Return a cell as it is written; text that could be a formula gets an apostrophe, numbers stay as they are.

    >>> safe("=1+1"), safe("-1.5"), safe(-2)
    ("'=1+1", '-1.5', -2)
    """
    if isinstance(cell, str) and cell.startswith(MARKED) and not _is_number(cell):
        return MARK + cell
    return cell


def plain(text: str) -> str:
    """Return the text of a cell that `safe` wrote.

    >>> plain("'=1+1")
    '=1+1'
    """
    rest = text.removeprefix(MARK)
    return rest if rest != text and rest.startswith(MARKED) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text[0].isspace()
