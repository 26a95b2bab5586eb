"""Whole rounds on a GPU: the first one, those after it, and where their time goes.

python benchmarks/gpu_rounds.py                                   # every case
python benchmarks/gpu_rounds.py small --rounds 200                # one case as a whole run
python benchmarks/gpu_rounds.py small --profile runs/profile      # which kernels, and which functions of Python

`small`: 100 clients × 450 images, MobileNet-V2, HCFL+ (FedRC), K = 3. `large`: 100 × 1,350 images, EfficientNet-Lite0,
the same method. `plusplus`: as `large`, HCFL++; `kept`: with momentum that clients keep. `full`: as `large`, three full
models (FedRC). All with Val and Test in every round.
"""

import argparse
import cProfile
import pstats
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from workloads import images

from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.core.setting import Setting
from hcfl.core.state import RunState
from hcfl.models.precision import matrix_products, threads
from hcfl.runs.prepare import Prepared, prepare

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "small": (450, {"method": "hcfl+(fedrc)", "model": "mobilenet-v2", "clusters": 3}),
    "large": (1350, {"method": "hcfl+(fedrc)", "model": "efficientnet-lite0", "clusters": 3}),
    "plusplus": (1350, {"method": "hcfl++", "model": "efficientnet-lite0"}),
    "kept": (1350, {"method": "hcfl++", "model": "efficientnet-lite0", "keep_momentum": True}),
    "full": (1350, {"method": "fedrc", "model": "efficientnet-lite0", "clusters": 3}),
    "fedavg": (1350, {"method": "fedavg", "model": "efficientnet-lite0"}),
}
PROFILED = 3
"""Rounds in which functions of Python are counted; of one, the kernels."""


def prepared(case: str, options: argparse.Namespace) -> Prepared:
    """Return a case's setting and its state before the first round."""
    samples, settings = CASES[case]
    config = from_flat(device=options.device, precision=options.precision, engine="batched", lr=0.001, **settings)
    return prepare(config, images(options.clients, options.samples or samples))


def profiled(setting: Setting, state: RunState, folder: Path, case: str) -> None:
    """Write which kernels take how long, and which functions of Python."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kind.CUDA if torch.cuda.is_available() else kind.CPU]) as kernels:
        state, _ = rounds.play_round(setting, state)
    kernels.export_chrome_trace(str(folder / f"{case}-trace.json.gz"))
    python = cProfile.Profile()
    python.enable()
    for _ in range(PROFILED):
        state, _ = rounds.play_round(setting, state)
    python.disable()
    with (folder / f"{case}-python.txt").open("w", encoding="utf-8") as file:
        for order in ("tottime", "cumtime"):
            pstats.Stats(python, stream=file).sort_stats(order).print_stats(60)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=[*CASES])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=None, help="of each client, instead of the case's")
    parser.add_argument(
        "--profile",
        type=Path,
        default=None,
        help="a folder for traces and profiles of more rounds",
    )
    options = parser.parse_args()
    print("| case | first round, s | median round, s | shortest, s | all rounds, s | prepare, s | peak GB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for case in options.cases:
        began = perf_counter()
        start = prepared(case, options)
        ready = perf_counter()
        state, seconds = start.state, []
        with matrix_products(rounded=options.precision != "fp32"), threads(start.config.threads):
            for _ in range(options.rounds):
                before = perf_counter()
                state, _ = rounds.play_round(start.setting, state)
                seconds.append(perf_counter() - before)
            rest = seconds[2:] or seconds
            times = (
                f"{seconds[0]:.1f} | {median(rest):.3f} | {min(rest):.3f} | {sum(seconds):.1f} | {ready - began:.1f}"
            )
            peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
            print(f"| {case} | {times} | {peak:.1f} |", flush=True)
            if options.profile is not None:
                profiled(start.setting, state, options.profile, case)


if __name__ == "__main__":
    main()
