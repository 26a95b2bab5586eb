"""Language models of Hugging Face as extractors: token numbers in, the mean of the last layer's tokens out.

Weights are read from safetensors files only, and code that comes with a model never runs.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hcfl.config.plugins import HUB_MODEL
from hcfl.errors import InputError
from hcfl.models.network import Builder, Pair

USUAL_LENGTH = 64

PADDING = -1
"""The number that stands where a text has no token."""


class TextExtractor(nn.Module):
    """Token numbers (samples, length), `PADDING` where a text has ended → features (samples, hidden size)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean over each text's tokens."""
        numbers = x.round().long()
        seen = numbers != PADDING
        found = self.model(input_ids=numbers.clamp_min(0), attention_mask=seen.long()).last_hidden_state
        weights = seen.to(found.dtype).unsqueeze(2)
        mean: Tensor = (found * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1)
        return mean


def builder(name: str) -> Builder:
    """Return the builder of `hf-model:OWNER/NAME`, or of a local folder with the model's files."""

    def build(shape: tuple[int, ...], classes: int) -> Pair:
        if len(shape) != 1:
            raise InputError(f"model.name = {name!r}: reads token numbers (samples, length), not inputs of {shape}")
        model = deepcopy(_loaded(name, "AutoModel"))
        longest = getattr(model.config, "max_position_embeddings", None)
        if longest is not None and shape[0] > longest:
            raise InputError(f"model.name = {name!r}: reads {longest} tokens at most, but inputs have {shape[0]}")
        return TextExtractor(model), nn.Linear(int(model.config.hidden_size), classes)

    return build


def tokens(texts: Sequence[str], model: str, length: int = 64) -> NDArray[np.float32]:
    """Return texts as token numbers (texts, length) by a model's own tokenizer; shorter texts are filled up with −1.

    For a federation whose inputs are not scaled: `Federation.from_arrays(tokens(…), y, client=…, scale="none")`.

    >>> tokens(["a good day"], "hf-model:OWNER/NAME", length=8)  # doctest: +SKIP
    """
    read = _tokenizer(model)(list(texts), truncation=True, max_length=length)["input_ids"]
    found = np.full((len(read), length), PADDING, dtype=np.float32)
    for row, numbers in enumerate(read):
        found[row, : len(numbers)] = numbers
    return found


def longer(texts: Sequence[str], model: str, length: int) -> int:
    """Return how many texts have more tokens than `length`."""
    read = _tokenizer(model)(list(texts), truncation=True, max_length=length + 1)["input_ids"]
    return sum(len(numbers) > length for numbers in read)


def usual_length(model: str) -> int:
    """Return how many tokens a text has at most by default: 64, or as many as the model reads where that is fewer."""
    return min(USUAL_LENGTH, int(_tokenizer(model).model_max_length))


@lru_cache(maxsize=4)
def vocabulary(model: str) -> str:
    """Return the hash of a tokenizer's tokens and their numbers: the same where texts become the same numbers."""
    words = json.dumps(_tokenizer(model).get_vocab(), sort_keys=True)
    return sha256(words.encode()).hexdigest()


def _tokenizer(model: str) -> Any:
    return _loaded(model, "AutoTokenizer")


@lru_cache(maxsize=4)
def _loaded(name: str, kind: str) -> Any:
    if find_spec("transformers") is None:
        raise InputError(f"model.name = {name!r}: needs the package transformers: pip install 'hcfl[text]'")
    transformers: Any = import_module("transformers")
    how = {"use_safetensors": True, "dtype": torch.float32, "attn_implementation": "eager"}
    try:
        return getattr(transformers, kind).from_pretrained(
            name.removeprefix(HUB_MODEL), trust_remote_code=False, **(how if kind == "AutoModel" else {})
        )
    except Exception as error:  # a folder that is none, a hub that cannot be reached, files of another kind
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise InputError(f"model.name = {name!r}: cannot be loaded ({reason})") from None
