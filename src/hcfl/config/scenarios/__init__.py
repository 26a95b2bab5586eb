"""Scenarios: a federation's settings under a name, as YAML files beside this one or of a user's own."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hcfl.config.yaml_files import read_yaml
from hcfl.errors import InputError

HERE = Path(__file__).parent

PARTITION_OF = {"alpha": "lda", "alpha_reading": "lda", "classes_per_client": "classes", "grouping": "classes"}
"""Settings of a single partition, and which one."""


def names() -> tuple[str, ...]:
    """Return the scenarios that come with hcfl."""
    return tuple(sorted(path.stem for path in HERE.glob("*.yaml")))


def load(scenario: str) -> dict[str, Any]:
    """Read a scenario by its name or file: `data` settings, and what they are in one line (`description`)."""
    is_file = scenario.endswith((".yaml", ".yml"))
    if not is_file and scenario not in names():
        close = get_close_matches(scenario, names(), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"data.scenario = {scenario!r}: must be {', '.join(names())}, or a .yaml file{hint}")
    values = read_yaml(Path(scenario) if is_file else HERE / f"{scenario}.yaml", "scenario")
    data = values.get("data")
    if set(values) - {"description", "data"} or not isinstance(data, dict) or "scenario" in data:
        raise InputError(f"scenario {scenario}: must hold `description:` and `data:` settings, and no other scenario")
    return values


def applied(values: Mapping[str, Any], every: Collection[str]) -> Mapping[str, Any]:
    """Put the settings of `data.scenario` below those that are given; a given `null` counts as given.

    Where every setting is given, as in the configuration that a run leaves, the scenario is only a label.
    """
    given = values.get("data")
    if not isinstance(given, dict) or given.get("scenario") is None or set(given) >= set(every):
        return values
    settings: dict[str, Any] = load(str(given["scenario"]))["data"]
    settings = {key: value for key, value in settings.items() if not _replaced(key, settings, given)}
    return {**values, "data": {**settings, **given}}


def _replaced(key: str, settings: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether the user's settings make one of the scenario's meaningless: another partition, or no noise."""
    implied = (PARTITION_OF[name] for name in PARTITION_OF if given.get(name) is not None)
    asked = given.get("partition") or next(implied, None)
    other_partition = asked is not None and asked != settings.get("partition", asked)
    if key == "partition":
        return other_partition
    if key == "noise_rate":
        return given.get("noise") == "none"
    return other_partition and key in PARTITION_OF
