"""Why uploads do not count, and the checks that find it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

RefusalKind = Literal["not finite", "too long", "impossible", "unlike"]
"""What is wrong with an upload: NaN or Inf; a model that is far too long; numbers that cannot come from the client's
samples; tensors of other kinds or shapes than those of most clients."""


@dataclass(frozen=True)
class Refusal:
    """Why an upload does not count."""

    kind: RefusalKind
    text: str
    """The sentence for the user, which begins with a verb: the client is its subject."""


NOT_FINITE = Refusal("not finite", "sent numbers that are not finite")
UNLIKE = Refusal("unlike", "sent counts, prototypes or moments unlike the others'")

Check = tuple[Tensor, Callable[[int], Refusal]]
"""Which participants fail it, (participants,), and why the participant at a position does."""


def impossible(text: str) -> Callable[[int], Refusal]:
    """Return the refusal of an upload with numbers that cannot come from a client's samples."""
    return lambda _: Refusal("impossible", text)
