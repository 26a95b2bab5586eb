"""Data sets of the Hugging Face hub, downloaded once as parquet files that stay on disk."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

from hcfl.errors import InputError


def download(source: str, repository: str, folder: Path) -> None:
    """Download a data set into a folder, one parquet file for each split; whole, or not at all."""
    try:
        import datasets
    except ImportError:
        raise InputError(f"data.source = {source!r}: downloading needs datasets; pip install 'hcfl[hub]'") from None
    try:
        splits = datasets.load_dataset(repository)
    except Exception as error:  # no network, no such data set, no access: all are the user's to read
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(
            f"data.source = {source!r}: there is no folder {folder}, and {repository} cannot be downloaded ({reason})"
        ) from None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(mkdtemp(prefix="partial-", dir=folder.parent))
        try:
            for split, samples in splits.items():
                samples.to_parquet(str(partial / f"{split}.parquet"))
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"data.data_dir = {str(folder.parent)!r}: cannot be written ({error.strerror or error})"
        ) from None
