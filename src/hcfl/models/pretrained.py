"""Published weights: finding, reading and renaming them. Files are read as tensors only, never as pickled code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.hub import load_state_dict_from_url

from hcfl.errors import InputError
from hcfl.regular_files import check_regular

Tensors = Mapping[str, Tensor]
"""A state dict."""


@dataclass(frozen=True)
class Published:
    """How another package names the tensors of a network, and where its weights are."""

    model: str
    """The package that publishes the state dict, for messages."""
    modules: Mapping[str, str]
    """The extractor's modules → what they are called there; tensors have the same last names and shapes."""
    head: str
    """The name of the classifier there, which is not used."""
    imagenet: Callable[[], Tensors]
    """Where weights trained on ImageNet come from."""


def load(extractor: nn.Module, channels: int, published: Published, source: str) -> None:
    """Fill an extractor for inputs of so many channels from `imagenet` or from a file.

    The weights want RGB; for grey images the kernels of the three colours are added up, as if the grey value were
    given to each of them.
    """
    where = f"model.pretrained = {source}"
    if channels not in (1, 3):
        raise InputError(f"{where}: the weights are for RGB or grey images, but the inputs have {channels} channels")
    if not any(True for _ in extractor.buffers()):
        raise InputError(f"model.norm = group: the weights of {where} come with batch normalisation")
    given = dict(published.imagenet() if source == "imagenet" else _file(source))
    renamed: dict[str, Tensor] = {}
    for name, ours in extractor.state_dict().items():
        module, _, leaf = name.rpartition(".")
        theirs = f"{published.modules[module]}.{leaf}"
        if theirs not in given:
            raise InputError(f"{where}: has no tensor {theirs!r}, so it is not a state dict of {published.model}")
        tensor = given.pop(theirs)
        if ours.shape[1:2] == (1,) and tensor.shape[1:2] == (3,):
            tensor = tensor.sum(dim=1, keepdim=True)
        if tensor.shape != ours.shape:
            shapes = f"{tuple(tensor.shape)}, but {published.model} has {tuple(ours.shape)}"
            raise InputError(f"{where}: the tensor {theirs!r} has shape {shapes}")
        renamed[name] = tensor
    for name in given:  # a deeper network of the same family would fit otherwise
        if not name.startswith(f"{published.head}.") and not name.endswith(".num_batches_tracked"):
            raise InputError(f"{where}: holds {name!r}, which {published.model} does not have")
    extractor.load_state_dict(renamed)


def _file(source: str) -> Tensors:
    path = Path(source)
    check_regular(path, f"model.pretrained = {source}")
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise InputError(f"model.pretrained = {source}: cannot be read ({error.strerror or error})") from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        raise InputError(
            f"model.pretrained = {source}: is neither imagenet nor a file of tensors only, .safetensors or .pth"
        ) from error


@lru_cache(maxsize=2)
def _read(path: Path, modified: int) -> Tensors:
    """Read a file once, not once per cluster; `modified` makes a changed file another one."""
    if path.suffix == ".safetensors":
        return load_file(path)
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError("not a state dict")
    return tensors


@lru_cache(maxsize=2)
def from_url(url: str) -> Tensors:
    """Download a file whose name ends with its hash, which is checked, or take it from torch's cache."""
    try:
        tensors: Tensors = load_state_dict_from_url(
            url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"model.pretrained = imagenet: {url} cannot be downloaded ({error}); get it elsewhere and give its path"
        ) from None
    return tensors


def from_package(package: str, file: str) -> Tensors:
    """Read a file of an installed package, without running any of the package's code."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(f"model.pretrained = imagenet: needs the package {package}: pip install 'hcfl[pretrained]'")
    return _file(str(Path(spec.origin).parent / file))
