"""The experiment as one validated object; YAML in, YAML out.

A field left at `null` takes the default of its source or method; the configuration that a run writes has them filled
in, so that running it again gives the same numbers.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError

from hcfl.config import scenarios
from hcfl.config.base_section import Section
from hcfl.config.data_section import DataConfig
from hcfl.config.faults_section import AdmissionConfig, FaultsConfig
from hcfl.config.plugins import HUB_MODEL
from hcfl.config.sections import (
    EvaluationConfig,
    MethodConfig,
    ModelConfig,
    PersonalConfig,
    Precision,
    PrivacyConfig,
    TrainingConfig,
)
from hcfl.config.yaml_files import parse, read_yaml
from hcfl.errors import InputError


class Config(Section):
    """One experiment."""

    method: MethodConfig = MethodConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    personal: PersonalConfig = PersonalConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    admission: AdmissionConfig = AdmissionConfig()
    faults: FaultsConfig | None = Field(
        None, description="simulate clients that fail: drop=0.4,nan=0.1 (docs/faults.md has all kinds)"
    )
    seed: int = Field(0, ge=0, description="the seed of everything")
    engine: Literal["auto", "sequential", "batched", "flower"] = Field(
        "auto",
        description="one client after another, all as one program, or Flower's simulation; "
        "auto: batched where that is faster (on a CPU, a short trial shows it), else sequential",
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:1, …")
    precision: Precision = Field(
        "fp32", description="fp32; on GPUs tf32 and bf16 are faster and coarser (averages and distances stay fp32)"
    )
    compile: bool | None = Field(
        None,
        description="batched, on a GPU: compile the network, minutes once; default: images and 20 rounds or more, "
        "unless its layers have kernels",
    )
    checkpoint_every: int | None = Field(
        None, ge=1, description="rounds between two checkpoints; default: as often as 5% of the time allows"
    )
    checkpoints_kept: int = Field(2, ge=1, description="how many checkpoints stay, in case the newest is damaged")
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="CPU threads; sequential: clients side by side; default all, batched 1 for small models",
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Validate nested values; raise InputError with one sentence about the first wrong one."""
        try:
            return cls.model_validate(scenarios.applied(values, DataConfig.model_fields))._with_tokenizer()
        except ValidationError as error:
            raise InputError(sentence(error)) from None

    def _with_tokenizer(self) -> Self:
        """Return a copy in which texts are read by the model's own tokenizer, and their token numbers not scaled."""
        if self.data.text is None:
            return self
        own = self.model.name if self.model.name.startswith(HUB_MODEL) else None
        return self.updated("data", tokenizer=self.data.tokenizer or own, scale="none")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a YAML file."""
        return cls.parse(read_yaml(path))

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Read what `to_yaml` returned."""
        return cls.parse(parse(text, "config"))

    def updated(self, section: str, **values: Any) -> Self:
        """Return a copy with some fields of one section set."""
        part: Section = getattr(self, section)
        return self.model_copy(update={section: part.model_copy(update=values)})

    def to_yaml(self) -> str:
        """Return the whole configuration as YAML."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)


SHORT_NAMES: dict[str, str] = {
    "data": "data.source",
    "model": "model.name",
    "method": "method.name",
    "privacy": "privacy.mode",
    "personal": "personal.kind",
    "personal_after": "personal.after",
}
"""Short names that differ from the last part of the field's path, which is the short name of all others."""


def flat_fields() -> dict[str, str]:
    """Return every setting's short name → its dotted path, for flags and keyword arguments."""
    paths = dict(SHORT_NAMES)
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            for leaf in field.annotation.model_fields:
                if f"{name}.{leaf}" not in SHORT_NAMES.values():
                    paths[leaf] = f"{name}.{leaf}"
        else:
            paths[name] = name
    return paths


def sentence(error: ValidationError) -> str:
    """Turn the first of pydantic's complaints into a sentence: field = value: what is allowed."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    value = first["input"]
    if first["type"] == "extra_forbidden":
        known = list(flat_fields().values())
        close = get_close_matches(path, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{path} = {value!r}: there is no such setting{hint}"
    reason = first["msg"].removeprefix("Input ")
    reason = reason[0].lower() + reason[1:]
    return f"{path} = {value!r}: {reason}"
