"""The reference pages, made from the code: every command, every setting, everything that `hcfl` exports.

A page says where, by the comments `<!-- from the code: commands -->` and `<!-- end -->`. What lies between is for
readers of the files; `python docs/reference.py` writes it. The site makes its own from the same code.
"""

import argparse
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

import hcfl
from hcfl import tiers
from hcfl.cli import build_parser
from hcfl.config import Config, Section, field_at, flat_fields
from hcfl.config.data_section import Columns

PLACE = re.compile(r"^<!-- from the code: (\w+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
PAGES = ("settings.md", "commands.md", "api.md")


def filled_in(page: str) -> str:
    """Put what is made from the code into a page of the site."""
    return PLACE.sub(lambda place: PARTS[place[1]](), page)


def written(page: str) -> str:
    """Put what is made from the code into the file of a page, as plain Markdown."""
    return PLACE.sub(
        lambda place: f"<!-- from the code: {place[1]} -->\n\n{PLAIN[place[1]]().strip()}\n\n<!-- end -->", page
    )


def commands() -> str:
    """Every command of the command line with its arguments; settings have a page of their own."""
    return "\n".join(_command(parser) for parser in leaves(build_parser()))


def leaves(parser: argparse.ArgumentParser, about: str = "") -> Iterator[argparse.ArgumentParser]:
    """Go through the commands that do something: `hcfl run`, `hcfl deploy init`, …; each knows what it is for."""
    branches = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not branches:
        parser.description = about
        yield parser
    for branch in branches:
        told = {choice.dest: choice.help or "" for choice in branch._choices_actions}
        for name, child in branch.choices.items():
            yield from leaves(child, told[name])


def _command(parser: argparse.ArgumentParser) -> str:
    paths = set(flat_fields().values())
    mine = [
        action
        for action in parser._actions
        if action.dest not in paths and action.dest not in ("help", argparse.SUPPRESS)
    ]
    sections = {action.dest.split(".")[0] for action in parser._actions if action.dest in paths}
    lines = [f"## {parser.prog}", "", _sentence(parser.description or ""), ""]
    if mine:
        lines += ["| argument | what |", "|---|---|", *(f"| {_spelled(a)} | {_cell(a.help or '')} |" for a in mine), ""]
    if len(sections) > 2:
        lines += ["And [every setting](settings.md) as a flag.", ""]
    elif sections:
        lines += ["And the settings of [the federation](settings.md#data), and `--seed`.", ""]
    return "\n".join(lines)


def _spelled(action: argparse.Action) -> str:
    value = action.metavar or action.dest.upper()
    if not action.option_strings:
        many = {"?": f"[{value}]", "+": f"{value} …"}
        return f"`{many.get(str(action.nargs), value)}`"
    takes_value = "" if action.nargs == 0 else f" {value}"
    return f"`{', '.join(action.option_strings)}{takes_value}{' …' if action.nargs == '+' else ''}`"


def settings() -> str:
    """Every setting by section: its flag and keyword, its path in YAML, what is allowed, the default."""
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    general = [name for name, kind in sections.items() if not _is_section(kind)]
    parts = [_table(name, kind.__doc__ or "") for name, kind in sections.items() if name not in general]  # type: ignore[union-attr]
    return "\n".join([*parts, _table("", "Beside the sections.")])


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _table(section: str, about: str) -> str:
    lines = [f"## {section or 'everything else'}", "", about, ""]
    lines += ["| flag | in YAML | values | default | what |", "|---|---|---|---|---|"]
    for name, path in flat_fields().items():
        owner, _, leaf = path.rpartition(".")
        if owner == section:
            field = field_at(path)
            flag = "METHOD" if path == "method.name" else f"--{name.replace('_', '-')}"
            default = "–" if field.default is None else f"`{_plain(field.default)}`"
            cells = (f"`{flag}`", f"`{leaf}`", _values(field), default, _cell(field.description))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _values(field: Any) -> str:
    """Return what is allowed: the words, or the kind with its bounds."""
    kind, metadata = field.annotation, field.metadata
    if get_origin(kind) in (Union, UnionType):
        kind, *words = (one for one in get_args(kind) if one is not NoneType)
        if words and get_origin(words[0]) is Literal:
            only = FieldInfo.from_annotation(kind)
            return ", ".join([_values(only), *(f"`{value}`" for value in get_args(words[0]))])
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if _is_section(kind):
        return f"any of {', '.join(f'`{name}`' for name in kind.model_fields)}"
    if kind == Columns:
        return "names: `a,b,c`"
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{signs[name]} {getattr(one, name):g}" for one in metadata for name in signs if hasattr(one, name)]
    words = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text"}
    return " ".join([words[kind], ", ".join(bounds)]).strip()


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", r"\|")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def exports() -> str:
    """Everything that `import hcfl` offers, by its docstring."""
    return _documented(hcfl)


def tier_exports() -> str:
    """Every choice on the four tiers, and the Protocols that a choice of one's own follows."""
    return _documented(tiers)


def _documented(module: ModuleType) -> str:
    lines = ["```{eval-rst}"]
    for name in module.__all__:
        thing = getattr(module, name)
        if isinstance(thing, type):
            arguments = "(**sections)" if issubclass(thing, Section) else ""  # all settings have their own page
            lines += [f".. autoclass:: {module.__name__}.{name}{arguments}", "   :members:", ""]
        elif callable(thing):
            lines += [f".. autofunction:: {module.__name__}.{name}", ""]
        else:
            lines += [f".. autodata:: {hcfl._HOMES[name]}.{name}", "   :no-value:", ""]  # its text stands there
    return "\n".join([*lines, "```"])


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "exports": exports,
    "tiers": tier_exports,
}
"""What pages can ask for."""


def _listed(module: ModuleType) -> str:
    """Everything that a module offers: its name with its arguments, and the first sentence of its docstring."""
    lines = ["| name | what |", "|---|---|"]
    for name in module.__all__:
        thing = getattr(module, name)
        doc = inspect.getdoc(thing) if isinstance(thing, type) or callable(thing) else "Every named method."
        first = (doc or "").split("\n\n")[0].replace("\n", " ")
        arguments = f"({', '.join(inspect.signature(thing).parameters)})" if inspect.isfunction(thing) else ""
        lines.append(f"| `{name}{arguments}` | {_cell(first)} |")
    return "\n".join(lines)


PLAIN: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "exports": lambda: _listed(hcfl),
    "tiers": lambda: _listed(tiers),
}
"""The same for readers of the files."""

if __name__ == "__main__":
    for name in PAGES:
        file = Path(__file__).parent / name
        file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")
