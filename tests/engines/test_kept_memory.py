"""Memory that training frees is kept for the next step."""

import os
import platform
import subprocess
import sys

import pytest

from hcfl.config import from_flat
from hcfl.engines import kept_memory
from hcfl.runs import engine_choice

STEPS = """
import resource, sys, torch
from hcfl.engines.kept_memory import keep_memory
kept = keep_memory() if sys.argv[1] == "keep" else False

def step():
    return [torch.zeros(1 << 21) for _ in range(4)]  # 8 MB each

for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **variables: str) -> tuple[str, int]:
    """How many pages the system had to give a process that takes five steps after five others."""
    command = [sys.executable, "-c", STEPS, how]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    kept, number = done.stdout.split()
    return kept, int(number)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no such setting")
def test_steps_reuse_memory_instead_of_asking_the_system_again():
    kept, few = faults("keep")
    fixed = {"MALLOC_TRIM_THRESHOLD_": str(1 << 17), "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}  # what glibc begins with
    _, many = faults("leave", **fixed)
    assert kept == "True"
    assert many > 5 * 8000, "a step has 8,192 pages of 4 KB"
    assert 5 * few < many, "one block at most is asked for again"


def test_who_chose_by_the_environment_is_left_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert not kept_memory.keep_memory()


@pytest.mark.parametrize("engine", ["sequential", "batched"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_engines_keep_it_wherever_they_train(engine, device, monkeypatch):
    asked = []
    monkeypatch.setattr(engine_choice, "keep_memory", lambda: asked.append(1))
    engine_choice.plain_engine(from_flat(method="fedavg", engine=engine, device=device))
    assert asked == [1], "weights and batches are made on the CPU also where a GPU trains"
