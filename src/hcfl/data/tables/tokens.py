"""A column of texts: how the tokenizer of a language model makes token numbers of them, the same everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcfl.config.plugins import HUB_MODEL
from hcfl.errors import InputError
from hcfl.models import text

LONGEST = 100_000
"""The largest length that a schema may ask for."""


@dataclass(frozen=True)
class Tokens:
    """How texts become token numbers."""

    tokenizer: str
    """The language model that it belongs to: `hf-model:OWNER/NAME`, or a folder."""
    length: int
    """The most tokens of a text; what comes after them is not read."""
    vocabulary: str
    """The hash of its tokens and their numbers."""

    @staticmethod
    def of(column: str, tokenizer: str | None, length: int | None) -> "Tokens":
        """Return how a tokenizer reads a column."""
        if tokenizer is None or not tokenizer.startswith(HUB_MODEL):
            asked = "" if tokenizer is None else f", not by {tokenizer!r}"
            raise InputError(
                f"data.text = {column!r}: texts are read by a language model{asked}; add --model "
                f"{HUB_MODEL}OWNER/NAME (where no model is trained: --tokenizer {HUB_MODEL}OWNER/NAME)"
            )
        return Tokens(tokenizer, length or text.usual_length(tokenizer), text.vocabulary(tokenizer))

    @staticmethod
    def read(values: dict[str, Any]) -> "Tokens":
        """Read what a schema says of them."""
        tokenizer, length, vocabulary = values["tokenizer"], int(values["length"]), values["vocabulary"]
        named = isinstance(tokenizer, str) and tokenizer.startswith(HUB_MODEL) and isinstance(vocabulary, str)
        if not named or not 0 < length <= LONGEST:
            raise ValueError("tokenizer, length and vocabulary of the texts")
        return Tokens(tokenizer, length, vocabulary)

    def encode(self, column: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return token numbers (texts, length); refuse a tokenizer with another vocabulary."""
        if text.vocabulary(self.tokenizer) != self.vocabulary:
            raise InputError(
                f"column {column!r}: the tokenizer of {self.tokenizer} has other tokens here than where the schema was "
                "fitted; take the same files of the model"
            )
        return text.tokens(texts, self.tokenizer, self.length)

    def cut(self, texts: Sequence[str]) -> float:
        """Return the share of the texts that are longer than what is read."""
        return text.longer(texts, self.tokenizer, self.length) / max(1, len(texts))
