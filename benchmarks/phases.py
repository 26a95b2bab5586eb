"""Where the time and the memory of a round go, phase by phase.

python benchmarks/phases.py                                               # digits
python benchmarks/phases.py --images --model mobilenet-v2 --device cuda --precision tf32 --compile true
"""

import argparse
import resource
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from workloads import images

from hcfl.config import from_flat
from hcfl.core import client, rounds
from hcfl.engines import Batched, Sequential
from hcfl.models.precision import matrix_products
from hcfl.runs.prepare import prepare

PHASES = {
    "look at the data (E-step's likelihoods)": (client, "look"),
    "local training": (None, "train"),
    "prototypes": (client, "compared_features"),
    "aggregate, distances, adapt": (rounds.server, "conclude"),
    "Val": (rounds, "predict_held_out"),
    "Test": (rounds, "test_accuracy"),
}


class Clock:
    """Times functions, and the memory that they need at most."""

    def __init__(self, cuda: bool) -> None:
        self.cuda, self.seconds, self.memory = cuda, dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time and memory added to a phase."""

        def run(*args: Any, **named: Any) -> Any:
            if self.cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            started = perf_counter()
            result = function(*args, **named)
            if self.cuda:
                torch.cuda.synchronize()
            self.seconds[phase] += perf_counter() - started
            used = (
                torch.cuda.max_memory_allocated()
                if self.cuda
                else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            )
            self.memory[phase] = max(self.memory[phase], used / 2**20)
            return result

        return run


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="hcfl+(fedrc)")
    parser.add_argument("--model", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--compile", type=lambda word: word == "true", default=None)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--clusters", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="after two that warm up")
    parser.add_argument("--clients", type=int, default=None)
    parser.add_argument("--images", action="store_true", help="450 random 32×32 images a client instead of digits")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clients = options.clients or (100 if options.images else 30)
    settings = {} if options.images else {"clients": clients}
    if options.method != "fedavg":
        settings["clusters"] = options.clusters
    names = ("method", "model", "device", "precision", "compile", "engine")
    config = from_flat(**{name: getattr(options, name) for name in names}, lr=0.001, **settings)
    prepared = prepare(config, images(clients, 450) if options.images else None)
    clock = Clock(options.device.startswith("cuda"))
    for phase, (module, name) in PHASES.items():
        for owner in (Batched,) if module is None else (module,):
            setattr(owner, name, clock.timed(phase, getattr(owner, name)))
    client.take_part.__defaults__ = (clock.timed("local training", client.train), None)
    state, total = prepared.state, 0.0
    with matrix_products(rounded=options.precision != "fp32"):
        for number in range(options.rounds + 2):
            if number == 2:
                clock.seconds = dict.fromkeys(PHASES, 0.0)
                started = perf_counter()
            state, _ = rounds.play_round(prepared.setting, state)
        total = (perf_counter() - started) / options.rounds
    kind = "sequential" if isinstance(prepared.setting.engine, Sequential) else "batched"
    print(f"{options.method}, {kind}, {options.device}, {options.precision}: {total:.3f} s a round")
    print("| phase | ms a round | share | peak MiB |\n|---|---|---|---|")
    for phase, seconds in clock.seconds.items():
        each = seconds / options.rounds
        print(f"| {phase} | {1000 * each:.1f} | {100 * each / total:.0f} % | {clock.memory[phase]:.0f} |")
    rest = total - sum(clock.seconds.values()) / options.rounds
    print(f"| all else | {1000 * rest:.1f} | {100 * rest / total:.0f} % | |", flush=True)


if __name__ == "__main__":
    main()
