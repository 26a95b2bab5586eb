"""The configuration: YAML in, YAML out, and one sentence for what is wrong."""

import pytest
import yaml

from hcfl.config import Config, assign, field_at, flat_fields, from_flat
from hcfl.errors import InputError


def test_yaml_round_trip():
    config = from_flat(method="fedem", clusters=5, alpha=0.3, lr=0.1, seed=7)
    assert Config.parse(yaml.safe_load(config.to_yaml())) == config


def test_short_names_lead_to_every_field_and_each_only_once():
    paths = list(flat_fields().values())
    assert len(paths) == len(set(paths))
    for path in paths:
        assert field_at(path).description, f"{path} needs a description: it is the flag's help"
    assert flat_fields()["data"] == "data.source"
    assert flat_fields()["rho"] == "method.rho"


BAD = [
    ({"rho": 3}, r"method.rho = 3: should be less than or equal to 2"),
    ({"rho": 0}, r"method.rho = 0: should be greater than 0"),
    ({"rho": "much"}, r"method.rho = 'much': should be a valid number"),
    ({"mu": 1.5}, r"method.mu = 1.5: should be less than or equal to 1"),
    ({"alpha": 0}, r"data.alpha = 0: should be greater than 0"),
    ({"alpha": float("nan")}, r"data.alpha = nan: should be a finite number"),
    ({"beta": 1.1}, r"data.beta = 1.1: should be less than or equal to 1"),
    ({"beta": -0.1}, r"data.beta = -0.1: should be greater than or equal to 0"),
    ({"clients": 0}, r"data.clients = 0: should be greater than or equal to 1"),
    ({"clients": 2.5}, r"data.clients = 2.5: should be a valid integer"),
    ({"partition": "dirichlet"}, r"data.partition = 'dirichlet': should be 'lda', 'classes', 'iid' or 'natural'"),
    ({"participation": 0}, r"training.participation = 0: should be greater than 0"),
    ({"momentum": 1}, r"training.momentum = 1: should be less than 1"),
    ({"dropout": 1}, r"model.dropout = 1: should be less than 1"),
    ({"dropout": -0.1}, r"model.dropout = -0.1: should be greater than or equal to 0"),
    ({"drop_last": "maybe"}, r"training.drop_last = 'maybe': should be a valid boolean"),
    ({"rounds": -1}, r"training.rounds = -1: should be greater than or equal to 1"),
    ({"seed": -1}, r"seed = -1: should be greater than or equal to 0"),
]


@pytest.mark.parametrize(("settings", "sentence"), BAD)
def test_values_out_of_range_are_named_with_what_is_allowed(settings, sentence):
    with pytest.raises(InputError, match=f"^{sentence}"):
        from_flat(**settings)


def test_unknown_settings_come_with_a_guess():
    with pytest.raises(InputError, match=r"aplha = 1: there is no such setting; did you mean alpha\?"):
        from_flat(aplha=1)
    with pytest.raises(InputError, match=r"data.aplha = 1: there is no such setting; did you mean data.alpha\?"):
        Config.parse({"data": {"aplha": 1}})
    with pytest.raises(InputError, match=r"data = 'digits': "):
        Config.parse({"data": "digits"})


def test_assign_refuses_a_path_through_a_value():
    with pytest.raises(InputError, match="seed is not a section here, but 3"):
        assign({"seed": 3}, "seed.x", 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 2020-13-45", "is not valid YAML"),
        ("1: 2", "must hold sections"),
        ("a: [", "is not valid YAML at line"),
        ("just words", "must hold sections"),
        ("", "must hold sections"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, text, words):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        Config.load(path)
    with pytest.raises(InputError, match="cannot be read"):
        Config.load(tmp_path / "missing.yaml")


def test_yaml_cannot_run_code(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("seed: !!python/object/apply:os.getpid []")
    with pytest.raises(InputError, match="is not valid YAML"):
        Config.load(path)
