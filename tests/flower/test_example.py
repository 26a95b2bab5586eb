"""The ready app is an app as Flower wants it, with settings that exist."""

import tomllib
from pathlib import Path

from flwr.cli.config_utils import load_and_validate

from hcfl import __version__
from hcfl.flower import deploy
from hcfl.flower.run_settings import read

APP = Path(__file__).parents[2] / "examples" / "flower-app" / "pyproject.toml"


def test_the_example_is_a_flower_app():
    config, warnings = load_and_validate(APP)
    assert warnings == []
    settings = read(config["tool"]["flwr"]["app"]["config"])
    assert settings.config.engine == "flower"
    assert (settings.names, settings.config.data.clients, settings.config.training.rounds) == ((), 10, 5)
    assert config["project"]["version"] == __version__


def test_a_sites_app_is_one_too(tmp_path):
    deploy.init(tmp_path / "site", deploy.Site(("north", "south")))
    path = tmp_path / "site" / "server" / "app" / "pyproject.toml"
    _, warnings = load_and_validate(path)
    assert warnings == []
    settings = read(tomllib.loads(path.read_text())["tool"]["flwr"]["app"]["config"])
    assert settings.names == ("north", "south")
    assert settings.config.method.name == "hcfl+(fedrc)"
