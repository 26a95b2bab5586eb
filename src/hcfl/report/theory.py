"""The output of `hcfl theory`: progress, a table, a picture, and the numbers as CSV and JSON."""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from hcfl.errors import InputError
from hcfl.report import plots
from hcfl.report.many_runs import empty_table, make_folder, print_line
from hcfl.report.theory_plot import plot_study
from hcfl.theory import study as studies
from hcfl.theory.settings import StudySettings
from hcfl.theory.study import Curve, Study, Summary

OUT = Path("runs") / "theory"
"""The default folder for the picture and the numbers."""


def show(settings: StudySettings, out: Path | None, console: Console) -> Study:
    """Run the study, show its table, and write picture and numbers to `out`, which is created before the study runs."""
    out = out or OUT
    make_folder(out)
    with _progress(settings, console) as on_curve:
        found = studies.run(settings, on_curve)
    console.print(study_table(found))
    for line in notes(found):
        print_line(line, console)
    picture = plots.save(plot_study(found), out / "theory.png")
    write_numbers(found, out)
    print_line(f"Picture: {picture}", console)
    print_line(f"Numbers: {out / 'theory.csv'}, every step; {out / 'theory.json'}, the table", console)
    return found


@contextmanager
def _progress(settings: StudySettings, console: Console) -> Iterator[Callable[[Curve], None]]:
    """Give a function that is called after each problem: it advances a bar in a terminal, or prints a line."""
    total = len(settings.imbalances) * settings.seeds
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("solving", total=total)
            yield lambda curve: progress.advance(task)
        return
    done = 0

    def plain(curve: Curve) -> None:
        nonlocal done
        done += 1
        found = f"min/max {curve.imbalance:.2f}  seed {curve.seed}  distance {curve.distances[-1]:.1e}"
        print_line(f"  {done}/{total} {found}", console)

    yield plain


def study_table(found: Study) -> Table:
    """Return the table: measured rates and floors beside the theorem's bound, a row for each imbalance."""
    table = empty_table(["min/max", "rate", "bound", "floor", "bound", "steps above", "samples"], names=0)
    for row in found.summaries:
        table.add_row(f"{row.imbalance:.2f}", _rate(row), *_bound(row, found.settings), f"{row.smallest_cluster:.2g}")
    return table


def _rate(row: Summary) -> str:
    if row.rate is None:
        return "–"
    return f"{row.rate:.3f}" + ("" if row.rate_std is None else f" ± {row.rate_std:.3f}")


def _bound(row: Summary, settings: StudySettings) -> tuple[str, str, str, str]:
    floor = f"{'< ' if row.still_falling else ''}{row.floor:.1e}"
    if row.bound_rate is None:
        return "nothing", floor, "–", "–"
    above = f"{row.steps_above} of {row.bounded * settings.steps}"
    return f"{row.bound_rate:.3f}", floor, f"{row.bound_floor:.2f}", above


def notes(found: Study) -> list[str]:
    """Return the lines below the table: where the bound says nothing and why, and the condition on samples."""
    lines = [
        "min/max: samples of the smallest cluster / the largest. "
        "rate: what a step multiplies the distance from B* by, on the way to the floor, where it stays. "
        "steps above: how many ended above what the bound allows."
    ]
    for row in found.summaries:
        if row.silence is not None:
            silent = row.seeds - row.bounded
            seeds = "" if silent == row.seeds else f" for {silent} of {row.seeds} seeds"
            lines.append(f"min/max {row.imbalance:.2f}: the bound says nothing{seeds}: {row.silence}.")
    if any(row.still_falling for row in found.summaries):
        lines.append("<: still falling after the last step; more --steps show the floor.")
    row = found.summaries[0]
    lines.append(
        "samples: min N̂ over what the theorem asks for, with its unknown constant 𝒞 taken as 1: no verdict. "
        f"N is {row.total:.3g} times K²/(d+c), and {row.unknowns:.3g} times the numbers in B*."
    )
    return lines


def write_numbers(found: Study, out: Path) -> None:
    """Write every step as CSV, and the settings with the table as JSON; unknown numbers are empty, or null."""
    try:
        with (out / "theory.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["imbalance", "seed", "step", "distance", "bound"])
            for curve in found.curves:
                for number, (distance, bound) in enumerate(zip(curve.distances, curve.bounded, strict=True)):
                    writer.writerow([curve.imbalance, curve.seed, number, distance, bound])
        content = {"settings": found.settings.model_dump(), "table": [asdict(row) for row in found.summaries]}
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        (out / "theory.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"out = {str(out)!r}: cannot be written ({error.strerror})") from None
