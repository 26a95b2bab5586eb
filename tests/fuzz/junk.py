"""Values and files as nobody means them. `HYPOTHESIS_PROFILE=full` tries 2,000 of each, otherwise there are few."""

import os
from typing import get_args

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hcfl.methods import METHODS, choices
from hcfl.models import MODELS

FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"


def few(number, full=2000):
    """As many examples as a test of a few seconds can afford, always the same; in full, 2,000, or what is said."""
    return settings(
        max_examples=full if FULL else number,
        derandomize=not FULL,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


numbers = st.one_of(
    st.integers(-3, 40),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.floats(0, 2),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400, 1e308, -0.0]),
)

CHOICES = [name for tier in choices.CHOICES for name in choices.names(tier)]
WORDS = [*METHODS, *MODELS, *CHOICES, "auto", "none", "custom", "digits", "cpu", "cuda", "meta", "x.npz", "x.yaml", "~"]

texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(WORDS),
    st.sampled_from(
        ["", " ", "\x00", "../..", "/", "x" * 300, "nan", "1e999", "null", "true", "[", "{", "no.py:F", "os:sep"]
    ),
    st.builds(
        lambda name, key, value: f"{name}({key}={value})",
        st.sampled_from(CHOICES),
        st.sampled_from(["rho", "mu", "over_classes", "principle", "weighted", "x", "scale", "", "proximal", "kept"]),
        st.one_of(st.text(max_size=6), numbers.map(str), st.sampled_from(["[" * 400, "2020-99-99", "max", "&a [*a]"])),
    ),
)

scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
junk = st.one_of(
    scalars,
    st.lists(scalars, max_size=2),
    st.dictionaries(st.text(max_size=4), scalars, max_size=2),
    st.binary(max_size=4),
)


def drawn(strategy, number):
    """So many values of a strategy."""
    found = []

    @settings(max_examples=number, derandomize=not FULL, database=None, phases=[Phase.generate], deadline=None)
    @given(strategy)
    def collect(value):
        found.append(value)

    collect()
    return found


def words_of(annotation):
    """The words that a field admits."""
    found = [word for part in get_args(annotation) for word in words_of(part)]
    return [*found, annotation] if isinstance(annotation, str) else found


def values_for(field):
    """Junk, and what the field admits."""
    words = words_of(field.annotation)
    return st.one_of(junk, st.sampled_from(words)) if words else junk


@st.composite
def damaged(draw, content):
    """Bytes that were cut, overwritten, doubled, or filled with others."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        some = draw(
            st.one_of(
                st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, bytes(8), b"[" * 2000, b"9" * 30])
            )
        )
        kind = draw(st.sampled_from(["overwrite", "insert", "cut", "truncate", "double"]))
        if kind == "overwrite":
            data[at : at + len(some)] = some
        elif kind == "insert":
            data[at:at] = some
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "truncate":
            del data[at:]
        else:
            data[at:at] = data[at : at + 64]
    return bytes(data)


@st.composite
def altered(draw, tree):
    """JSON in which one value is another."""
    if draw(st.integers(0, 3)) == 0 or not isinstance(tree, dict | list) or not tree:
        return draw(
            st.one_of(scalars.filter(lambda value: value == value), st.just([]), st.just({}), st.just([[1], {}]))
        )
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    chosen = draw(st.sampled_from(list(keys)))
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    if draw(st.integers(0, 5)) == 0:
        del copy[chosen]
    else:
        copy[chosen] = draw(altered(tree[chosen]))
    return copy
