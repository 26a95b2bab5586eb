"""What differential privacy costs in accuracy: Val and Test on digits against the noise, in simulation."""

import argparse
import tempfile
from pathlib import Path
from statistics import mean

import hcfl
from hcfl.privacy.accounting import epsilon_of

CENTRAL = (0.01, 0.03, 0.1, 0.3, 1.0)
LOCAL = (0.0003, 0.001, 0.003, 0.01, 0.03)
FIXED = {"adaptation": "fixed", "distance": "none", "clusters": 3}

ROWS = (
    ("fedavg", "central-dp", {}, CENTRAL),
    ("hcfl+(fedrc)", "central-dp", FIXED, CENTRAL),
    ("fedavg", "local-dp", {}, LOCAL),
    ("hcfl+(fedrc)", "local-dp", {}, LOCAL),
)


def main() -> None:
    """Print a table: noise multiplier, ε of a client, Val, Test, clusters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clip", type=float, default=1.0)
    asked = parser.parse_args()

    print("| method | privacy | noise multiplier | ε at δ = 1e-5 | Val | Test | clusters |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for method, mode, settings, multipliers in ROWS:
            for noise in (None, *multipliers):
                private = {} if noise is None else {"privacy": mode, "noise_multiplier": noise, "clip": asked.clip}
                found = []
                for seed in range(asked.seeds):
                    out = Path(folder) / f"{method}-{mode}-{noise}-{seed}"
                    try:
                        run = hcfl.run(method, rounds=asked.rounds, seed=seed, out=out, **settings, **private)
                        found.append(run.summary)
                    except hcfl.InputError as error:
                        assert "diverged" in str(error), error
                fixed = ", 3 clusters that stay" if settings else ""
                spent = "∞" if noise is None else f"{epsilon_of(1e-5, noise, asked.rounds):,.0f}"
                name = f"| {method}{fixed} | {'none' if noise is None else mode} | {noise or '–'} | {spent} |"
                if len(found) < asked.seeds:
                    print(f"{name} diverged | diverged | – |", flush=True)
                    continue
                val, test = (100 * mean(summary[key] for summary in found) for key in ("val_last", "test_last"))
                clusters = ", ".join(str(summary["clusters_last"]) for summary in found)
                print(f"{name} {val:.1f} | {test:.1f} | {clusters} |", flush=True)


if __name__ == "__main__":
    main()
