"""The `hcfl` command: thin, no logic."""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from hcfl import __version__
from hcfl.cli import many, runs, theory, watching
from hcfl.cli.settings import add_allow_code, add_help, add_settings, changes_of, config_of, count
from hcfl.config import from_flat
from hcfl.errors import InputError, SavingError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, an exhausted quota, and a file over the limit."""

NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "excessive memory usage")
"""How torch, CUDA, and joblib on a killed process say that memory ran out, where they do not raise MemoryError."""

TRACK_HELP = "let tensorboard, mlflow or wandb follow the run; may be repeated"


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the whole command line; the documentation lists it from here."""
    parser = _Parser(
        prog="hcfl",
        description="Clustered federated learning.",
        allow_abbrev=False,
        epilog="Start with: hcfl demo",
    )
    parser.add_argument("--version", action="version", version=f"hcfl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo", allow_abbrev=False, help="watch HCFL+ find groups of clients that were not given to it"
    )
    demo.add_argument("--seed", default=0, help="the seed of everything (default 0)")
    demo.add_argument("--rounds", default=30, help="rounds of each run (default 30)")

    run = commands.add_parser("run", help="run a method", allow_abbrev=False, add_help=False)
    add_help(run)
    run.add_argument("method", metavar="METHOD", nargs="?", help="see `hcfl methods`")
    run.add_argument("--out", metavar="FOLDER", type=Path, help="the run folder (default: a new one under runs/)")
    add_settings(run)

    run.add_argument("--track", metavar="NAME", action="append", default=[], help=TRACK_HELP)

    resume = commands.add_parser("resume", help="go on with a run that was interrupted", allow_abbrev=False)
    resume.add_argument("folder", metavar="FOLDER", type=Path, help="its run folder")
    resume.add_argument("--track", metavar="NAME", action="append", default=[], help=TRACK_HELP)
    add_allow_code(resume, "the folder")
    runs.add_commands(commands)
    many.add_commands(commands)
    theory.add_commands(commands)
    watching.add_commands(commands)

    data = commands.add_parser("data", help="show a federation before training", allow_abbrev=False)
    data.add_argument("source", metavar="SOURCE", nargs="?", help="a name, a file or a folder, as --data; or: schema")
    data.add_argument(
        "tables", metavar="FILE", nargs="*", help="after `schema`: write how the columns of these tables become inputs"
    )
    data.add_argument("--out", metavar="FILE", type=Path, default=Path("schema.json"), help="where a schema goes")
    data.add_argument(
        "--picture", metavar="FILE", type=Path, default=Path("federation.png"), help="where the picture goes"
    )
    add_settings(data, sections=("data", "seed"))

    reproduce = commands.add_parser(
        "reproduce", allow_abbrev=False, help="run a table of the paper, ours beside theirs"
    )
    reproduce.add_argument("table", metavar="TABLE", nargs="?", help="without it, the tables are listed")
    reproduce.add_argument("--rows", metavar="NAME", nargs="+", default=[], help="only rows whose name contains this")
    reproduce.add_argument("--seeds", metavar="N", default=1, help="runs per cell (default 1)")
    reproduce.add_argument(
        "--scale", metavar="SCALE", default="small", help="small (minutes, the default) or paper (days)"
    )
    reproduce.add_argument("--workers", metavar="N", help="runs side by side (default: one for each core)")
    reproduce.add_argument("--out", metavar="FOLDER", type=Path, help="where runs go (default runs/reproduce)")
    reproduce.add_argument("--set", metavar="A.B=C", action="append", default=[], help="set a field in every run")

    report = commands.add_parser("report", allow_abbrev=False, help="write runs as one HTML page, with all figures")
    report.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="run folders, over the same data")
    report.add_argument(
        "--out", metavar="FILE", type=Path, help="the page (default report.html, in the folder if there is one run)"
    )

    _add_deploy(commands.add_parser("deploy", allow_abbrev=False, help="write what real clients on Flower need"))
    commands.add_parser("scenarios", help="list the scenarios: settings of a federation by name")
    listing = commands.add_parser("methods", allow_abbrev=False, help="list the methods and their choices")
    listing.add_argument("--compositions", action="store_true", help="show which choices compose, as Markdown")
    return parser


def _add_deploy(parser: argparse.ArgumentParser) -> None:
    """Add the commands that write a site."""
    commands = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    init = commands.add_parser("init", allow_abbrev=False, help="write a new site: certificates, keys, scripts, units")
    add = commands.add_parser("add", allow_abbrev=False, help="add clients to a site")
    for command in (init, add):
        command.add_argument("folder", metavar="FOLDER", type=Path, help="the site's folder")
        command.add_argument("--clients", metavar="NAME", nargs="+", required=True, help="a name for each client")
    rotate = commands.add_parser("rotate", allow_abbrev=False, help="give a client a new key in place of the old one")
    revoke = commands.add_parser("revoke", allow_abbrev=False, help="keep a client out from now on")
    keys = commands.add_parser("list", allow_abbrev=False, help="list the keys of a site, with those that were revoked")
    for command in (rotate, revoke, keys):
        command.add_argument("folder", metavar="FOLDER", type=Path, help="the site's folder")
    for command in (rotate, revoke):
        command.add_argument("client", metavar="CLIENT", help="the client's name")
    init.add_argument("--host", default="127.0.0.1", help="the server as clients reach it (default 127.0.0.1)")
    init.add_argument("--port", default=9090, help="the SuperLink's, on the server itself only (default 9090)")
    init.add_argument("--front-port", default=9443, help="where nodes come in (default 9443)")
    init.add_argument("--node-port", default=9094, help="the first client's, for its own processes (default 9094)")
    init.add_argument("--force", action="store_true", help="replace the keys and files of a site that is there")


def _reproduce(arguments: argparse.Namespace, console: Console) -> None:
    from hcfl.report import reproduction

    if arguments.table is None:
        reproduction.list_tables(console)
        return
    if arguments.scale not in ("small", "paper"):
        raise InputError(f"--scale {arguments.scale}: must be small or paper")
    workers = None if arguments.workers is None else count("workers", arguments.workers)
    reproduction.show(
        arguments.table,
        arguments.rows,
        count("seeds", arguments.seeds),
        arguments.scale,
        workers,
        changes_of(arguments.set),
        arguments.out or reproduction.OUT,
        console,
    )


def _run(arguments: argparse.Namespace, console: Console) -> None:
    from hcfl.report.show import run_and_show

    run_and_show(config_of(arguments), arguments.out, console, arguments.track)


def _resume(arguments: argparse.Namespace, console: Console) -> None:
    from hcfl.report.show import resume_and_show

    resume_and_show(arguments.folder, console, arguments.track, arguments.allow_code)


def _demo(arguments: argparse.Namespace, console: Console) -> None:
    from hcfl.report.show import demo

    demo(from_flat(seed=arguments.seed, rounds=arguments.rounds), console)


def _report(arguments: argparse.Namespace, console: Console) -> None:
    from hcfl.report import page

    console.print(f"Report: {page.write(arguments.runs, arguments.out)}", highlight=False, soft_wrap=True)


def _data(arguments: argparse.Namespace, console: Console) -> None:
    from hcfl.data import build
    from hcfl.report import plots, tables

    if arguments.source == "schema":
        _schema(arguments, console)
        return
    if arguments.tables:
        raise InputError(f"{arguments.tables[0]}: hcfl data shows one source; only `hcfl data schema` takes several")
    config = config_of(arguments)
    federation = build(config.data, config.seed)
    if federation.schema is not None:
        console.print(tables.column_table(federation.schema))
    console.print(tables.federation_table(federation))
    for note in federation.notes:
        console.print(f"Note: {note}.", highlight=False)
    picture = plots.save(plots.plot_federation(federation), arguments.picture)
    console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)


def _schema(arguments: argparse.Namespace, console: Console) -> None:
    """Write the schema of tables, or the one that joins several schemas."""
    from hcfl.data.tables.schemas import schema_of_files
    from hcfl.report.tables import column_table
    from hcfl.runs import atomic_file

    arguments.source = None
    schema = schema_of_files([*map(Path, arguments.tables)], config_of(arguments).data)
    for note in schema.notes:
        console.print(f"Note: {note}.", highlight=False, soft_wrap=True)
    console.print(column_table(schema))
    try:
        atomic_file.write_text(arguments.out, schema.to_json())
    except OSError as error:
        raise InputError(f"--out {arguments.out}: cannot be written ({error.strerror})") from None
    console.print(f"Schema: {arguments.out}", highlight=False, soft_wrap=True)


def _deploy(arguments: argparse.Namespace, console: Console) -> None:
    from hcfl import flower

    flower.require("deploy")
    from hcfl.flower import deploy

    folder = arguments.folder
    if arguments.step == "list":
        lines = deploy.listing(folder)
    elif arguments.step == "rotate":
        lines = deploy.after_rotation(folder, deploy.rotate(folder, arguments.client))
    elif arguments.step == "revoke":
        lines = deploy.after_revocation(folder, deploy.revoke(folder, arguments.client))
    else:
        if arguments.step == "add":
            deploy.add(folder, arguments.clients)
        else:
            ports = {name: count(name.replace("_", "-"), getattr(arguments, name)) for name in deploy.PORTS}
            deploy.init(folder, deploy.Site(tuple(arguments.clients), arguments.host, **ports), arguments.force)
        lines = [f"Next: {folder / 'README.md'}"]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _methods(arguments: argparse.Namespace, console: Console) -> None:
    from hcfl.report.tables import method_table, settings_lines

    if arguments.compositions:
        from hcfl.methods.compositions import page

        print(page(), end="")
        return
    console.print(method_table())
    console.print("Settings and their defaults", style="italic")
    for line in settings_lines():
        console.print(f" {line}", highlight=False)


def _scenarios(arguments: argparse.Namespace, console: Console) -> None:
    from hcfl.report.tables import scenario_table

    console.print(scenario_table())


COMMANDS = {
    "run": _run,
    "resume": _resume,
    "reproduce": _reproduce,
    "report": _report,
    "demo": _demo,
    "data": _data,
    "deploy": _deploy,
    "scenarios": _scenarios,
    "methods": _methods,
    **runs.COMMANDS,
    **many.COMMANDS,
    **theory.COMMANDS,
    **watching.COMMANDS,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0 done, 2 bad input, 74 not saved, 128 + its number for a signal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal without Unicode shows question marks, not a traceback
            stream.reconfigure(errors="replace")
    arguments = build_parser().parse_args(argv)
    console = Console(markup=False)
    try:
        return _do(arguments, console)
    except (MemoryError, RuntimeError, OSError) as error:
        if not _is_out_of_memory(error):
            raise
        print(f"hcfl: {_memory_sentence(error)}", file=sys.stderr)
        return 2


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be had."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return any(words in str(error).lower() for words in NO_MEMORY)


def _memory_sentence(error: BaseException) -> str:
    """Return one sentence on an allocation that failed, with what the library says about it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = f" ({lines[0].rstrip('.')})" if lines else ""
    return f"the memory is not enough{reason}; take less data, fewer clients at a time or a smaller model"


def _do(arguments: argparse.Namespace, console: Console) -> int:
    """Run a command; return its exit code."""
    try:
        COMMANDS[arguments.command](arguments, console)
    except InputError as error:
        print(f"hcfl: {error}", file=sys.stderr)
        return os.EX_IOERR if isinstance(error, SavingError) else 2
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"hcfl: {where}cannot be written ({error.strerror})", file=sys.stderr)
        return os.EX_IOERR
    except KeyboardInterrupt as error:
        print(f"hcfl: {str(error) or 'interrupted'}", file=sys.stderr)
        return getattr(error, "exit_code", 130)
    return 0
