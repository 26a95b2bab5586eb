"""Arguments that nobody means, through the command's own entry point: exit code 2, never a traceback."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from junk import WORDS, few, numbers, texts

from hcfl.cli import COMMANDS, main
from hcfl.config import flat_fields

FLAGS = [f"--{name.replace('_', '-')}" for name in flat_fields() if name not in ("method", "data")]
OTHERS = [
    "--set",
    "--config",
    "--track",
    "--grid",
    "--seeds",
    "--workers",
    "--allow-code",
    "--client",
    "--cluster",
    "--rows",
]

words = st.one_of(
    texts,
    numbers.map(str),
    st.sampled_from([*WORDS, "=", "a=b", "data.alpha=x", "method=", "privacy.clip=-1", "--", "-", "-x", "rho=1,2"]),
)
arguments = st.lists(st.one_of(words, st.sampled_from(FLAGS), st.sampled_from(OTHERS)), max_size=5)


def ended(argv):
    """The exit code, however it comes."""
    try:
        return main(argv)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # What is well-formed must not start: these have no data, no rounds, or no folder to write to.
    never = {
        "run": ["--data", "missing.npz"],
        "data": ["--data", "missing.npz"],
        "compare": ["--seeds", "0"],
        "sweep": ["--seeds", "0"],
        "reproduce": ["--scale", "never"],
        "demo": ["--rounds", "0"],
        "deploy": ["nowhere"],
        "theory": ["--steps", "0"],
        "watch": ["--port", "0.5"],
    }.get(command, [])

    @few(12)
    @given(arguments)
    def try_it(given):
        code = ended([command, *given, *never])
        said = capsys.readouterr()
        assert code in (0, 2), (code, given)
        assert "Traceback" not in said.err
        if code == 2:
            assert said.err.strip()
        else:
            shown = command in ("methods", "scenarios", "reproduce") or {"-h", "--help", "digits"} & {*given}
            assert shown, given

    try_it()


@few(40)
@given(arguments)
def test_no_command_at_all(given):
    assert ended(given) in (0, 2)
