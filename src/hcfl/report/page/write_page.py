"""Run folders → one HTML file that holds the template, the style, the scripts and the data."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from hcfl import __version__
from hcfl.errors import InputError
from hcfl.report.page.groups import as_groups, grouped
from hcfl.report.page.reading import Folder, as_data, read
from hcfl.runs import atomic_file
from hcfl.runs import folder as run_folder
from hcfl.runs.links import check_target
from hcfl.studies.comparison import Point

FIGURES = (
    "basics",
    "plot",
    "theme",
    "curves",
    "frontier",
    "lineage",
    "timeline",
    "heat",
    "maps",
    "cost",
    "tables",
    "detail",
)
"""The scripts of the figures, each after those that it uses; `hcfl watch` has them, too."""

SCRIPTS = (*FIGURES, "main")
"""The scripts of the page."""

DISTANCES_IN_PAGE = 240_000
"""How many distances a page holds for all runs together: about a megabyte."""


def write(
    runs: Sequence[Path],
    out: Path | None = None,
    labels: Sequence[str] | None = None,
    points: Mapping[str, Point] | None = None,
) -> Path:
    """Write the report of one run, or of several over the same data; return its path.

    Args:
        runs: run folders.
        out: the file, with the suffix .html; by default `report.html`, in the folder of a single run, or in the current
            folder for several.
        labels: for each run, the name of its group; by default, runs that differ in their seed only are a group.
        points: by the name of a group, the settings that a sweep varied in it.

    >>> write([Path("runs/digits-fedavg-seed0")])  # doctest: +SKIP
    PosixPath('runs/digits-fedavg-seed0/report.html')
    """
    folders = [read(path) for path in runs]
    if not folders:
        raise InputError("runs = []: there must be at least one")
    check_same_data(folders)
    if out is None:
        out = folders[0].path / run_folder.REPORT if len(folders) == 1 else Path(run_folder.REPORT)
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"out = {str(out)!r}: must end in .html")
    for folder in folders:
        check_target(out, folder.path)
    try:
        atomic_file.write_text(out, html_of(folders, labels, points))
    except OSError as error:
        raise InputError(f"out = {str(out)!r}: cannot be written ({error.strerror})") from None
    return out


def html_of(
    folders: Sequence[Folder], groups: Sequence[str] | None = None, points: Mapping[str, Point] | None = None
) -> str:
    """Return the page as HTML; `groups` and `points` are the `labels` and `points` of `write`."""
    resources = files(__package__)
    found = grouped(folders, groups)
    compared = as_groups(folders, found) if len(folders) > 1 else None
    labels = _labels(folders, found)
    swept = {label: dict(point) for label, point in (points or {}).items() if point}
    most_distances = DISTANCES_IN_PAGE // len(folders)
    runs = [as_data(folder, label, most_distances) for folder, label in zip(folders, labels, strict=True)]
    return Template((resources / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"hcfl: {', '.join(label for label, _ in found)}"),
        style=(resources / "page.css").read_text(encoding="utf-8"),
        script="".join((resources / "js" / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS),
        data=embedded({"version": __version__, "runs": runs, "compared": compared, "swept": swept}),
    )


def embedded(data: Any) -> str:
    """Return JSON that is safe inside a script element: no name in it can close the element."""
    text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(data: Any) -> Any:
    """Replace NaN and Inf by null: JSON in browsers has neither."""
    if isinstance(data, float):
        return data if data - data == 0 else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list) else data


def _labels(folders: Sequence[Folder], groups: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
    """Return a label for each run: that of its group and, where the group has several, its seed, or its folder."""
    labels = [""] * len(folders)
    for label, members in groups:
        seeds = [folders[at].config.seed for at in members]
        for at in members:
            told = (
                f"seed {folders[at].config.seed}" if len(set(seeds)) == len(seeds) else folders[at].path.resolve().name
            )
            labels[at] = label if len(members) == 1 else f"{label}, {told}"
    return labels


NOT_THE_DATA = {"data_dir", "cache_dir", "scenario"}
"""Settings of `data` that are paths, or that only name where other settings come from."""


def check_same_data(folders: Sequence[Folder]) -> None:
    """Raise InputError for runs over different data; runs with other seeds are other draws of the same federation."""
    first = folders[0]
    for other in folders[1:]:
        one, two = (folder.config.data.model_dump(exclude=NOT_THE_DATA) for folder in (first, other))
        differing = [key for key in one if one[key] != two[key]]
        if differing:
            key = differing[0]
            raise InputError(
                f"run = {str(other.path)!r}: has data.{key} = {two[key]!r}, but {str(first.path)!r} has {one[key]!r}; "
                "only runs over the same data can be compared"
            )
        same_draw = first.config.seed == other.config.seed and first.clients and other.clients
        if same_draw and _clients_and_concepts(first) != _clients_and_concepts(other):
            raise InputError(
                f"run = {str(other.path)!r}: has other clients than {str(first.path)!r}; "
                "only runs over the same data can be compared"
            )


def _clients_and_concepts(folder: Folder) -> list[tuple[str, str]]:
    return [(row["client"], row["true_concept"]) for row in folder.clients]
