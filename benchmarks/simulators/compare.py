"""FedAvg in hcfl, in a plain PyTorch loop and in other simulators: the same data, model, batches, rounds and cores.

python benchmarks/simulators/compare.py --workload mlp --rounds 20
python benchmarks/simulators/compare.py --workload cnn --rounds 4 --only hcfl pfl flower
python benchmarks/simulators/compare.py --workload lenet --rounds 3 --only hcfl blazefl   # BlazeFL's own benchmark

Each simulator has an environment of its own, made the first time it is needed (from PyPI, 4 GB in all).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from workload import make

HERE = Path(__file__).resolve().parent
CONSTRAINTS = HERE.parents[1] / "constraints.txt"

BATCH = {"mlp": 25, "cnn": 50, "lenet": 50}
SAMPLES = {"mlp": 150, "cnn": 450, "lenet": 500}
EPOCHS = {"mlp": 1, "cnn": 1, "lenet": 5}


@dataclass(frozen=True)
class Contender:
    """A script, and the environment that it runs in."""

    script: str
    environment: str | None = None
    """The name of its requirements file; None: where this script itself runs."""
    launcher: tuple[str, ...] = ()
    """What starts it instead of python alone."""
    python: str = sys.executable
    """What makes the environment."""


def contenders(cores: int) -> dict[str, Contender]:
    """Return the simulators by the name that `--only` takes; each in the form that suits this many cores best.

    Only one of pfl-research's two forms can be the better one, but which it is depends on the model.
    """
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cores))
    return {
        "hcfl": Contender("with_hcfl.py"),
        "plain": Contender("plain.py"),
        "pfl": Contender("pfl_research.py", "pfl"),
        "pfl-processes": Contender("pfl_research.py", "pfl", torchrun),
        "fluke": Contender("with_fluke.py", "fluke"),
        "flower": Contender("with_flower.py", "flower"),
        "blazefl": Contender("with_blazefl.py", "blazefl", python="python3.12"),
    }


def python_of(contender: Contender, folder: Path) -> Path:
    """Return the python of an environment; it is made, or made anew, if its requirements are not what they were."""
    name = contender.environment
    if name is None:
        return Path(sys.executable)
    requirements = HERE / f"requirements-{name}.txt"
    torch = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    wanted = f"{torch}\n{requirements.read_text()}"
    environment, python = folder / name, folder / name / "bin" / "python"
    stamp = environment / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making {environment} …", file=sys.stderr)
        subprocess.run([contender.python, "-m", "venv", "--clear", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", torch, "-r", requirements], check=True)
        stamp.write_text(wanted)
    return python


def run(contender: Contender, folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run one script and return what it found."""
    python = python_of(contender, folder)
    # Another environment must not find this one's packages.
    variables = {k: v for k, v in os.environ.items() if contender.environment is None or k != "PYTHONPATH"}
    command = [str(python), *contender.launcher, str(HERE / contender.script), *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            return result
    raise SystemExit(f"{contender.script} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def cpu_seconds() -> float:
    """Return the CPU time of all processes that were started from here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run all simulators and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=("mlp", "cnn", "lenet"), default="mlp")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, help="of each client; default 150 vectors, 450 images, 500 of lenet")
    parser.add_argument("--batch", type=int, help="default 25 vectors, 50 images")
    parser.add_argument("--rounds", type=int, default=5, help="the first one does not count")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=list(contenders(1)), default=list(contenders(1)))
    parser.add_argument("--cpu", action="store_true", help="also the CPU time of a round, by runs of two rounds")
    parser.add_argument("--folder", type=Path, default=Path(".benchmarks"), help="for environments and data")
    options = parser.parse_args()
    if options.rounds < 2 + options.cpu:
        parser.error(f"--rounds: at least {2 + options.cpu}, since the first ones do not count")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)

    model, data = options.workload, folder / f"{options.workload}.npz"
    samples, batch = options.samples or SAMPLES[model], options.batch or BATCH[model]
    x, y = make(model, options.clients, samples + 1)
    np.savez(data, x=x, y=y)
    del x, y

    known = contenders(options.cores)
    for name in options.only:
        python_of(known[name], folder)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])  # all that is started from here inherits
    arguments = ["--data", str(data), "--model", model, "--batch", str(batch), "--epochs", str(EPOCHS[model])]
    arguments += ["--cores", str(options.cores)]
    results = []
    for name in options.only:
        print(f"running {name} …", file=sys.stderr)
        before = cpu_seconds()
        results.append(run(known[name], folder, [*arguments, "--rounds", str(options.rounds)]))
        spent = cpu_seconds() - before
        if options.cpu:
            run(known[name], folder, [*arguments, "--rounds", "2"])
            results[-1]["cpu"] = (2 * spent - (cpu_seconds() - before)) / (options.rounds - 2)

    ours = next((result for result in results if result["name"].startswith("hcfl")), results[0])
    work = f"{model}, batch {batch}, local epochs {EPOCHS[model]}"
    print(f"FedAvg, {options.clients} clients × {samples}, {work}, {options.cores} cores\n")
    titles = ["simulator", "s a round", f"over {ours['name']}", "steps", "accuracy on training data"]
    titles += ["CPU s a round"] if options.cpu else []
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for result in results:
        ratio = result["seconds"] / ours["seconds"]
        cells = [f"{result['seconds']:.3f}", f"{ratio:.2f}", str(result["steps"]), f"{result['accuracy']:.3f}"]
        cells += [f"{result['cpu']:.3f}"] if options.cpu else []
        print(f"| {result['name']} | {' | '.join(cells)} |")
    for result in results:
        if result["steps"] != ours["steps"] or abs(result["accuracy"] - ours["accuracy"]) > 0.05:
            print(f"\n{result['name']} did not do the same work as {ours['name']}: compare steps and accuracy.")


if __name__ == "__main__":
    main()
