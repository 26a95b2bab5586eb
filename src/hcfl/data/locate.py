"""Finds the folder of a data source by its name, or downloads it."""

import os
from importlib.util import find_spec
from pathlib import Path

from hcfl.config import DataConfig
from hcfl.data.readers import cache, hub
from hcfl.data.readers.paths import is_file, is_folder
from hcfl.errors import InputError

HUB = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "tiny-imagenet": "zh-plus/tiny-imagenet",
    "fashion-mnist": "zalando-datasets/fashion_mnist",
}
"""Named sources, and their repositories on the hub."""

FOLDERS = {"tiny-imagenet": ("tiny-imagenet", "tiny-imagenet-200", "tiny-imagenet-150")}
"""Folder names of a source, where they differ from its own name."""

SYSTEM = Path("/usr/share/datasets")
"""Where Debian's packages put data sets, fashion-mnist among them."""

PREFIX = "hf:"


def data_dir(config: DataConfig) -> Path:
    """Return the folder of local copies: the setting, $HCFL_DATA, or `data` in the cache."""
    chosen = config.data_dir or os.environ.get("HCFL_DATA")
    return Path(chosen).expanduser() if chosen else cache.location(config.cache_dir) / "data"


def find(config: DataConfig) -> Path:
    """Return the folder of a source: a local copy, the user's own folder, or one that is downloaded now."""
    source, home = config.source, data_dir(config)
    if source.startswith(PREFIX):
        repository = source.removeprefix(PREFIX)
        if repository.count("/") != 1 or not all(repository.split("/")) or ".." in repository:
            raise InputError(f"data.source = {source!r}: must look like {PREFIX}OWNER/NAME")
        names: tuple[str, ...] = (repository.replace("/", "--"),)
    else:
        repository = HUB.get(source, "")
        names = FOLDERS.get(source, (source,))
        if not repository and is_folder(Path(source)):
            return Path(source)
    for place in (home, SYSTEM):
        for name in names:
            if is_folder(place / name):
                return place / name
    if not repository:
        there = is_file(Path(source))
        why = "this file is none of them" if there else f"there is none of this name, here or in {home}"
        raise InputError(
            f"data.source = {source!r}: must be digits, {', '.join(HUB)}, {PREFIX}OWNER/NAME, a .npz file, a table "
            f"(.csv or .parquet), or a folder of images or parquet files ({why})"
        )
    if find_spec("datasets") is None:
        raise InputError(
            f"data.source = {source!r}: there is no folder {' or '.join(names)} in {home} or {SYSTEM}; say where it "
            f"is with --data-dir or $HCFL_DATA, or pip install 'hcfl[hub]' to download it ({repository})"
        )
    hub.download(source, repository, home / names[0])
    return home / names[0]
