"""How near the estimate of a round's memory (hcfl/runs/memory_estimate.py) comes to what a round takes.

python benchmarks/memory.py

Random images, MLPs and convolutional networks, both engines; every point in a process of its own. Measured is the
largest resident memory of a round less what was there before it.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from hcfl import Federation
from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.models.mobile import mobilenet_v2
from hcfl.models.zoo import cnn, mlp
from hcfl.runs.memory_estimate import estimate
from hcfl.runs.prepare import prepare

MODELS = {
    "mlp 256-128": mlp,
    "mlp 1000-1000": partial(mlp, hidden=(1000, 1000)),
    "cnn": cnn,
    "mobilenet-v2": partial(mobilenet_v2, norm="batch", stem="small", pretrained="none"),
}


@dataclass(frozen=True)
class Point:
    """One setting to measure."""

    method: str
    model: str
    engine: str
    clients: int
    side: int = 16
    samples: int = 20


POINTS = (
    Point("fedavg", "mlp 256-128", "batched", 200),
    Point("fedavg", "mlp 1000-1000", "batched", 40),
    Point("fedavg", "mlp 1000-1000", "sequential", 40),
    Point("fedem", "mlp 1000-1000", "batched", 20),
    Point("fedem", "mlp 1000-1000", "sequential", 20),
    Point("hcfl+(fedrc)", "mlp 1000-1000", "sequential", 60),
    Point("cfl", "mlp 1000-1000", "sequential", 40),
    Point("stocfl", "mlp 1000-1000", "sequential", 20),
    Point("fedavg", "cnn", "sequential", 100, 32),
    Point("fedavg", "mobilenet-v2", "sequential", 40, 32, 20),
    Point("hcfl+(fedrc)", "mobilenet-v2", "sequential", 40, 32, 20),
)


def resident(what: str) -> int:
    """Return VmRSS or VmHWM, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def measure(point: Point) -> dict[str, float]:
    """Play a round; return bytes that were estimated and measured."""
    torch.set_num_threads(1)
    draw, number = np.random.default_rng(0), point.clients * point.samples
    x = draw.standard_normal((number, point.side, point.side, 3), dtype=np.float32)
    client = np.arange(point.clients).repeat(point.samples)
    federation = Federation.from_arrays(x, np.arange(number) % 10, client=client)
    del x
    config = from_flat(method=point.method, engine=point.engine, lr=0.001, epochs=1)
    prepared = prepare(config, federation, MODELS[point.model])
    setting = prepared.setting
    expected = estimate(setting.network, setting.method, federation, prepared.config, torch.device("cpu"))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the largest so far is what is there now
    before = resident("VmRSS")
    for _ in rounds.play(setting, prepared.state, 1):
        pass
    return {"estimated": expected.total, "measured": resident("VmHWM") - before}


def main() -> None:
    """Print a table, or measure one point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--point", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.point:
        print(json.dumps(measure(Point(**json.loads(asked.point)))))
        return
    print("| method | model | engine | clients | estimated, MB | measured, MB | estimated / measured |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    for point in POINTS:
        command = [sys.executable, __file__, "--point", json.dumps(asdict(point))]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        ratios.append(found["estimated"] / found["measured"])
        sizes = f"{found['estimated'] / 1e6:.0f} | {found['measured'] / 1e6:.0f} | {ratios[-1]:.2f}"
        print(f"| {point.method} | {point.model} | {point.engine} | {point.clients} | {sizes} |", flush=True)
    print(f"\nfrom {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
