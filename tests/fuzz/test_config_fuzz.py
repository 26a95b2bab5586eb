"""Every setting with values that nobody means: a sentence, never a traceback."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junk import FULL, drawn, few, junk, values_for, words_of

from hcfl.config import Config, field_at, flat_fields, from_flat
from hcfl.errors import InputError
from hcfl.runs.prepare import prepare
from helpers import blobs

FIELDS = sorted(flat_fields())


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "tiny.npz"
    x, y = blobs(classes=3, per_class=12, features=4)
    np.savez(path, x=x, y=y)
    return str(path)


def told(error):
    """A sentence that somebody can read."""
    assert str(error).strip()
    assert len(str(error)) < 20_000


def cases(name):
    """Values of a setting, mostly alone, sometimes with another one."""
    others = st.sampled_from(FIELDS).flatmap(
        lambda other: st.tuples(st.just(other), values_for(field_at(flat_fields()[other])))
    )
    pairs = st.tuples(values_for(field_at(flat_fields()[name])), st.none() | others)
    return pairs.map(lambda pair: {**({} if pair[1] is None else {pair[1][0]: pair[1][1]}), name: pair[0]})


@pytest.fixture(scope="module")
def pool():
    """Values for all settings: drawing them takes ten times as long as reading them."""
    return drawn(junk, 2000 if FULL else 40)


@pytest.mark.parametrize("name", FIELDS)
def test_a_setting_is_read(name, file, pool):
    words = words_of(field_at(flat_fields()[name]).annotation)
    for number, value in enumerate([*pool, *words]):
        other = {FIELDS[number * 7 % len(FIELDS)]: pool[number * 3 % len(pool)]} if number % 3 == 0 else {}
        settings = {"data": file, "clients": 3, **other, name: value}
        try:
            from_flat(**settings)
        except InputError as error:
            told(error)
        except Exception as error:
            raise AssertionError(f"{settings}: {error!r}") from error


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_setting_builds(name, file, tmp_path, monkeypatch):
    """Everything that a run needs, and the settings as a run writes them down."""
    monkeypatch.chdir(tmp_path)  # what is a relative path leads nowhere else

    @few(2, full=50)
    @given(cases(name))
    def try_it(settings):
        try:
            config = from_flat(**{"data": file, "clients": 3, **settings})
            assert Config.from_yaml(config.to_yaml()) == config
            prepare(config)
        except InputError as error:
            told(error)

    try_it()


@few(60)
@given(st.dictionaries(st.sampled_from([*Config.model_fields, "x", ""]) | st.text(max_size=3), junk, max_size=4))
def test_sections_that_are_none(values):
    with contextlib.suppress(InputError):
        Config.parse(values)
