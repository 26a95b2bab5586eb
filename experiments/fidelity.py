"""The paper's numbers beside ours: play a queue of runs, and show what is there.

    python experiments/fidelity.py --device cuda --workers 2   # full runs; goes on where it was interrupted
    python experiments/fidelity.py --tables                    # the tables of docs/fidelity.md
    python experiments/fidelity.py --tables --picture docs/images/fidelity.png --frontier docs/images/frontier.png
    python experiments/fidelity.py --plan experiments/trials.yaml --out experiments/results/trials --tables --one-table
    python experiments/fidelity.py --plan experiments/digits.yaml --device cpu --out runs/digits   # on digits, on a CPU

Every run is a small folder (configuration, metrics, events, summary); full runs are kept in experiments/results.
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure

from hcfl.config import Config
from hcfl.config.yaml_files import read_yaml
from hcfl.report import plots
from hcfl.runs import folder as run_folder
from hcfl.runs.tables import summarise
from hcfl.studies import jobs, paper_tables, pool
from hcfl.studies.paper_tables import Column, Row, Table

HERE = Path(__file__).parent
COLOURS = colormaps["tab20"].colors
MARKERS = "osD^vP*X"
Point = tuple[float, float, float]
"""Val, Test and K."""

ENOUGH_ROUNDS = 20
"""An interrupted run is shown from this round on."""


@dataclass(frozen=True)
class Study:
    """One federation and model, with rows of a table of the paper and rows of our own."""

    title: str
    table: Table
    column: Column
    rows: dict[str, Row]
    settings: tuple[dict[str, Any], ...]
    published: bool

    def task(self, row: str, seed: int, out: Path, device: str) -> jobs.Task:
        """Return one run."""
        values: dict[str, Any] = paper_tables.settings_of(self.table, self.rows[row], self.column, "paper")
        for settings in self.settings:
            for name, value in settings.items():
                values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
        return jobs.task_of(Config.parse({**values, "seed": seed, "device": device}), out)


def studies(file: Path) -> tuple[dict[str, Study], list[tuple[str, str, int]]]:
    """Read what is asked for: the studies by name, and their runs (study, row, seed) in order."""
    plan = read_yaml(file, "plan")
    found = {}
    for name, parts in plan["studies"].items():
        table = paper_tables.load(parts["table"])
        rows = {row.label: row for row in table.rows}
        rows |= {label: Row(label, settings, {"method": label}) for label, settings in plan["ours"].items()}
        column = next(column for column in table.columns if column.label == parts["column"])
        settings = (plan["settings"], parts.get("settings", {}))
        found[name] = Study(parts["title"], table, column, rows, settings, not parts.get("unpublished"))
    runs = [(step["study"], row, seed) for step in plan["queue"] for seed in step["seeds"] for row in step["rows"]]
    return found, runs


def by_row(study: Study, runs: Iterable[tuple[str, jobs.Task]]) -> dict[str, list[jobs.Task]]:
    """Return the runs of each row, in the order of the paper's table; ours come last."""
    found: dict[str, list[jobs.Task]] = {row: [] for row in study.rows}
    for row, task in runs:
        found[row].append(task)
    return {row: tasks for row, tasks in found.items() if tasks}


def summaries(tasks: Sequence[jobs.Task]) -> list[dict[str, Any]]:
    """Return what runs ended with; of an interrupted run, what it had found up to its last complete round.

    Its last Val and Test are those of the last round in which they were measured.
    """
    found = []
    for task in tasks:
        if task.done:
            found.append(json.loads((task.folder / run_folder.SUMMARY).read_text(encoding="utf-8")))
        elif (task.folder / run_folder.METRICS).exists():
            rows = run_folder.rows(task.folder, run_folder.METRICS)
            if len(rows) >= ENOUGH_ROUNDS:
                measured = next(row for row in reversed(rows) if row["val"] is not None)
                last = {"val_last": measured["val"], "test_last": measured["test"]}
                found.append({**summarise(task.config.method.name, task.config, None, rows), **last})
    return found


HEAD = (
    "seeds | rounds | Val, best | Test, best | Test at best Val | Val, last | Test, last |"
    " K | K, most | ARI, affected |",
    "---|" * 10,
)
PERSONAL = (" Val, personal |", "---|")
"""A further column of studies in which clients have personal parts: Val of those parts after the last round."""


def has_personal_parts(wanted: dict[str, list[jobs.Task]]) -> bool:
    """Return whether clients have personal parts in a run that has been played."""
    found = (summary for tasks in wanted.values() for summary in summaries(tasks))
    return any(summary.get("val_personal_last") is not None for summary in found)


def rows(study: Study, wanted: dict[str, list[jobs.Task]]) -> Iterator[tuple[str, str]]:
    """Return the name of each row of a study, and its cells as Markdown; in brackets what the paper prints."""
    personal = has_personal_parts(wanted)
    for row, tasks in wanted.items():
        found = summaries(tasks)

        def cell(key: str, scale: float = 1.0, digits: int = 1, paper: str | None = None) -> str:
            values = [scale * summary[key] for summary in found if summary.get(key) is not None]  # noqa: B023
            spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
            printed = None
            if paper and study.published:
                printed = paper_tables.paper_value(study.table, study.rows[row], study.column, paper)  # noqa: B023
            shown = f"{mean(values):.{digits}f}{spread}" if values else "–"
            return shown if printed is None else f"{shown} [{printed:g}]"

        of, played = tasks[0].config.training.rounds, [summary["rounds"] for summary in found]
        rounds = "–" if not played else f"{of}" if min(played) == of else f"{min(played)} of {of}"
        cells = [
            f"{len(found)} of {len(tasks)}",
            rounds,
            cell("val_best", 100, paper="val"),
            cell("test_best", 100, paper="test"),
            cell("test_at_best_val", 100),
            cell("val_last", 100),
            cell("test_last", 100),
            cell("clusters_last", paper="clusters"),
            cell("clusters_max"),
            cell("ari_affected_last", digits=2),
        ]
        yield row, " | ".join([*cells, cell("val_personal_last", 100)] if personal else cells)


def titled(study: Study, wanted: dict[str, list[jobs.Task]]) -> str:
    """Return a study's title with the copies of the training set that its runs deal: more of them raise Val."""
    numbers = sorted({task.config.data.copies for tasks in wanted.values() for task in tasks})
    copies = (f"{number} {'copy' if number == 1 else 'copies'}" for number in numbers)
    return ", ".join((study.title, " or ".join(copies)))


def lines(study: Study, wanted: dict[str, list[jobs.Task]]) -> Iterator[str]:
    """Return a study as a table in Markdown."""
    head, rule = (
        (f"{both[0]}{both[1]}" for both in zip(HEAD, PERSONAL, strict=True)) if has_personal_parts(wanted) else HEAD
    )
    yield from (f"### {titled(study, wanted)}", "", f"| method | {head}", f"|---|{rule}")
    yield from (f"| {row} | {cells} |" for row, cells in rows(study, wanted))
    yield ""


def one_table(studies: Sequence[tuple[Study, dict[str, list[jobs.Task]]]]) -> Iterator[str]:
    """Return all studies as one table; rows that have not been played are left out."""
    yield from (f"| setting | method | {HEAD[0]}", f"|---|---|{HEAD[1]}")
    for study, wanted in studies:
        played = {row: tasks for row, tasks in wanted.items() if summaries(tasks)}
        yield from (f"| {titled(study, wanted)} | {row} | {cells} |" for row, cells in rows(study, played))
    yield ""


def picture(study: Study, wanted: dict[str, list[jobs.Task]]) -> Figure:
    """Draw Val, Test, K and the agreement with the true concepts over rounds, of each row's first seed."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = dict(zip(("val", "test", "clusters", "ari_affected"), figure.subplots(2, 2).flat, strict=True))
    titles = {"val": "Val", "test": "Test", "clusters": "K", "ari_affected": "ARI, affected clients"}
    first = {row: tasks[0] for row, tasks in wanted.items() if summaries(tasks[:1])}
    for number, (row, task) in enumerate(first.items()):
        played = run_folder.rows(task.folder, run_folder.METRICS)
        for key, axes in panels.items():
            points = [(entry["round"], entry[key]) for entry in played if entry[key] is not None]
            axes.plot(*zip(*points, strict=True), label=row, color=COLOURS[number % len(COLOURS)], linewidth=1.2)
    for key, axes in panels.items():
        axes.set(xlabel="round", title=titles[key])
        axes.grid(alpha=0.3)
    panels["clusters"].axhline(3, color="black", linewidth=0.8, linestyle="--")
    figure.legend(*panels["val"].get_legend_handles_labels(), loc="outside right center", fontsize=7)
    figure.suptitle(f"{titled(study, wanted)}, seed 0")
    return figure


def frontier(study: Study, wanted: dict[str, list[jobs.Task]]) -> Figure:
    """Draw Val against Test, each row's best rounds; the settings of one method (ρ, τ, tol) are joined by a line."""
    families: dict[str, list[str]] = {}
    for row in wanted:
        families.setdefault(re.sub(r" \([\d., ]+\)|, ρ = [\d.]+", "", row), []).append(row)
    sources = {"here": _measured, "in the paper": _printed} if study.published else {"here": _measured}
    figure = Figure(figsize=(5 * len(sources) + 1.7, 4.6), layout="constrained")
    axes = figure.subplots(1, len(sources), squeeze=False)[0]
    for (title, source), panel in zip(sources.items(), axes, strict=True):
        for number, (family, rows) in enumerate(families.items()):
            points = sorted(filter(None, (source(study, row, wanted[row]) for row in rows)), key=lambda point: point[2])
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            line = ([val for val, _, _ in points], [test for _, test, _ in points])
            panel.plot(*line, color=colour, marker=marker, label=family)
            for val, test, clusters in points:
                near = {"textcoords": "offset points", "xytext": (4, 4), "fontsize": 7}
                panel.annotate(f"{round(clusters, 1):g}", (val, test), **near)
        panel.set(xlabel="Val (%)", ylabel="Test (%)", title=f"{title}; beside each point: K")
        panel.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=7)
    figure.suptitle(f"{titled(study, wanted)}: best rounds")
    return figure


def _measured(study: Study, row: str, tasks: Sequence[jobs.Task]) -> Point | None:
    found = summaries(tasks)
    val, test, clusters = ([each[key] for each in found] for key in ("val_best", "test_best", "clusters_last"))
    return (100 * mean(val), 100 * mean(test), mean(clusters)) if found else None


def _printed(study: Study, row: str, tasks: Sequence[jobs.Task]) -> Point | None:
    of = (study.table, study.rows[row], study.column)
    val, test, clusters = (paper_tables.paper_value(*of, key) for key in ("val", "test", "clusters"))
    return None if val is None or test is None or clusters is None else (val, test, clusters)


def main() -> None:
    """Play the queue, or show the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--plan", type=Path, default=HERE / "fidelity.yaml", help="what to play (default fidelity.yaml)"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", type=int, help="play only so many runs of those that are missing")
    parser.add_argument("--tables", action="store_true", help="play nothing, show what is there")
    parser.add_argument("--one-table", action="store_true", help="show all studies as one table")
    parser.add_argument("--picture", type=Path, help="draw the curves of one study into this file")
    parser.add_argument("--frontier", type=Path, help="draw Val against Test of one study into this file")
    parser.add_argument("--of", help="which study (default: the first)")
    options = parser.parse_args()
    known, runs = studies(options.plan)
    tasks = {run: known[run[0]].task(*run[1:], options.out, options.device) for run in runs}
    if not options.tables:

        def done(task: jobs.Task, number: int, of: int) -> None:
            print(f"{number}/{of} {task.folder.name}", flush=True)

        missing = [task for task in tasks.values() if not task.done]
        pool.run_all(missing[: options.first], options.workers, done)
    by_study = {
        name: by_row(study, [(row, task) for (of, row, _), task in tasks.items() if of == name])
        for name, study in known.items()
    }
    if options.one_table:
        print("\n".join(one_table([(known[name], wanted) for name, wanted in by_study.items()])))
        return
    for name, study in known.items():
        wanted = by_study[name]
        print("\n".join(lines(study, wanted)))
        if name == (options.of or next(iter(known))):
            for draw, file in ((picture, options.picture), (frontier, options.frontier)):
                if file:
                    plots.save(draw(study, wanted), file)


if __name__ == "__main__":
    main()
