"""The paper's numbers beside ours: play the queue of full runs in fidelity.yaml, and show what is there.

    python experiments/fidelity.py --device cuda --workers 2   # goes on where it was interrupted
    python experiments/fidelity.py --tables                    # the tables of docs/fidelity.md
    python experiments/fidelity.py --tables --picture docs/images/fidelity.png --of beta-0.2   # its curves

Every run is a small folder (configuration, metrics, events, summary) in experiments/results.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure

from hcfl import experiments, reproduce, run_folder
from hcfl.config import Config
from hcfl.experiments import Column, Row, Table
from hcfl.report import plots
from hcfl.yaml_files import read_yaml

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Study:
    """One federation and model, with rows of a table of the paper and rows of our own."""

    title: str
    table: Table
    column: Column
    rows: dict[str, Row]
    settings: tuple[dict[str, Any], ...]
    published: bool

    def task(self, row: str, seed: int, out: Path, device: str) -> reproduce.Task:
        """Return one run."""
        values: dict[str, Any] = experiments.settings_of(self.table, self.rows[row], self.column, "paper")
        for settings in self.settings:
            for name, value in settings.items():
                values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
        return reproduce.task_of(Config.parse({**values, "seed": seed, "device": device}), out)


def studies(file: Path) -> tuple[dict[str, Study], list[tuple[str, str, int]]]:
    """Read what is asked for: the studies by name, and their runs (study, row, seed) in order."""
    plan = read_yaml(file, "plan")
    found = {}
    for name, parts in plan["studies"].items():
        table = experiments.load(parts["table"])
        rows = {row.label: row for row in table.rows}
        rows |= {label: Row(label, settings, {"method": label}) for label, settings in plan["ours"].items()}
        column = next(column for column in table.columns if column.label == parts["column"])
        settings = (plan["settings"], parts.get("settings", {}))
        found[name] = Study(parts["title"], table, column, rows, settings, not parts.get("unpublished"))
    runs = [(step["study"], row, seed) for step in plan["queue"] for seed in step["seeds"] for row in step["rows"]]
    return found, runs


def lines(study: Study, wanted: dict[str, list[reproduce.Task]]) -> Iterator[str]:
    """Return a study as Markdown; in brackets what the paper prints."""
    yield f"### {study.title}"
    yield ""
    yield "| method | seeds | Val, best | Test, best | Test at best Val | K | K, most | ARI, affected |"
    yield "|---|---|---|---|---|---|---|---|"
    for row, tasks in wanted.items():
        there = [task for task in tasks if task.done]
        summaries = [json.loads((task.folder / run_folder.SUMMARY).read_text(encoding="utf-8")) for task in there]

        def cell(key: str, scale: float = 1.0, digits: int = 1, paper: str | None = None) -> str:
            values = [scale * summary[key] for summary in summaries if summary[key] is not None]  # noqa: B023
            spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
            printed = None
            if paper and study.published:
                printed = experiments.paper_value(study.table, study.rows[row], study.column, paper)  # noqa: B023
            shown = f"{mean(values):.{digits}f}{spread}" if values else "–"
            return shown if printed is None else f"{shown} [{printed:g}]"

        cells = [
            cell("val_best", 100, paper="val"),
            cell("test_best", 100, paper="test"),
            cell("test_at_best_val", 100),
            cell("clusters_last", paper="clusters"),
            cell("clusters_max"),
            cell("ari_affected_last", digits=2),
        ]
        yield f"| {row} | {len(there)} of {len(tasks)} | {' | '.join(cells)} |"
    yield ""


def picture(study: Study, wanted: dict[str, list[reproduce.Task]]) -> Figure:
    """Draw Val, Test, K and the agreement with the true concepts over rounds, of each row's first seed."""
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    panels = dict(zip(("val", "test", "clusters", "ari_affected"), figure.subplots(1, 4), strict=True))
    titles = {"val": "Val", "test": "Test", "clusters": "K", "ari_affected": "ARI, affected clients"}
    for row, tasks in wanted.items():
        if not tasks[0].done:
            continue
        rows = run_folder.rows(tasks[0].folder, run_folder.METRICS)
        for key, axes in panels.items():
            points = [(entry["round"], entry[key]) for entry in rows if entry[key] is not None]
            axes.plot(*zip(*points, strict=True), label=row, linewidth=1.2)
    for key, axes in panels.items():
        axes.set(xlabel="round", title=titles[key])
        axes.grid(alpha=0.3)
    panels["clusters"].axhline(3, color="black", linewidth=0.8, linestyle="--")
    panels["test"].legend(fontsize=7, loc="lower right")
    figure.suptitle(f"{study.title}, seed 0")
    return figure


def main() -> None:
    """Play the queue, or show the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=HERE / "fidelity.yaml", help="what to play (default fidelity.yaml)")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--first", type=int, help="play only so many runs of those that are missing")
    parser.add_argument("--tables", action="store_true", help="play nothing, show what is there")
    parser.add_argument("--picture", type=Path, help="draw the curves of one study into this file")
    parser.add_argument("--of", default="beta-0.2", help="which (default beta-0.2)")
    options = parser.parse_args()
    known, runs = studies(options.plan)
    tasks = {run: known[run[0]].task(*run[1:], options.out, options.device) for run in runs}
    if not options.tables:

        def done(task: reproduce.Task, number: int, of: int) -> None:
            print(f"{number}/{of} {task.folder.name}", flush=True)

        missing = [task for task in tasks.values() if not task.done]
        reproduce.run_all(missing[: options.first], options.workers, done)
    for name, study in known.items():
        wanted: dict[str, list[reproduce.Task]] = {}
        for (of, row, _), task in tasks.items():
            if of == name:
                wanted.setdefault(row, []).append(task)
        print("\n".join(lines(study, wanted)))
        if options.picture and name == options.of:
            plots.save(picture(study, wanted), options.picture)


if __name__ == "__main__":
    main()
