"""Real images, where somebody put them beside the repository."""

from pathlib import Path

import pytest
import torch

from hcfl.cli import main
from hcfl.config import DataConfig
from hcfl.data import build

DATA = Path(__file__).parents[3] / "shared" / "data"


def real(source):
    """Return the folder of a source; without it, the test is skipped."""
    if not (DATA / source).is_dir():
        pytest.skip(f"{source} is not in ../shared/data beside the repository")
    return DATA / source


def run(source, folder, rounds):
    small = ["--samples", "300", "--clients", "4", "--rounds", str(rounds), "--model", "cnn"]
    given = ["--data", source, "--data-dir", str(folder), "--scenario", "diverse", *small]
    return main(["run", "hcfl+(fedrc)", *given, "--out", "run"])


def test_cifar10_from_parquet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = real("cifar10").parent
    federation = build(DataConfig(source="cifar10", data_dir=str(folder), clients=100), seed=0)
    assert (federation.shape, federation.class_names[0]) == ((32, 32, 3), "airplane")
    assert (len(federation.x), len(federation.test_x)) == (60_000, 10_000)
    rows = torch.cat([*federation.train, *federation.val])
    assert torch.equal(rows.sort().values, torch.arange(50_000)), "every training sample exactly once"
    assert torch.bincount(federation.y[:50_000]).tolist() == [5000] * 10
    assert run("cifar10", folder, rounds=3) == 0


@pytest.mark.parametrize(
    ("source", "name", "classes", "side"),
    [("cifar100", "cifar100", 100, 32), ("tiny-imagenet-150", "tiny-imagenet", 200, 64)],
)
def test_others_from_the_smaller_of_their_files(source, name, classes, side, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / source).mkdir()
    (tmp_path / source / "train.parquet").symlink_to(real(source) / "test.parquet")
    federation = build(DataConfig(source=name, data_dir=str(tmp_path)), seed=0)
    assert (federation.classes, federation.shape) == (classes, (side, side, 3))
    assert len(set(torch.bincount(federation.y).tolist())) == 1, "as many of each class"
    assert run(name, tmp_path, rounds=1) == 0
