"""The settings of the study, validated: flags and keyword arguments come from these fields."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from hcfl.config import Section, sentence
from hcfl.errors import InputError

LARGEST_SIZE = 100_000_000
"""The largest clients × samples × dimension of a problem: 0.8 GB."""


class StudySettings(Section):
    """The settings of `hcfl theory`."""

    dimension: int = Field(20, ge=2, le=10_000, description="d: numbers in a sample x")
    latent: int = Field(4, ge=1, le=1000, description="c: directions that matter, columns of B*")
    clusters: int = Field(4, ge=1, le=1000, description="K: heads θ*_k, at least as many as directions")
    clients: int = Field(100, ge=2, le=100_000, description="M: clients, each in one known cluster")
    samples: int = Field(50, ge=1, le=1_000_000, description="samples of each client")
    heads: Literal["even", "random"] = Field(
        "even", description="how θ*_k lie: even shows every direction of B* equally well, random does not"
    )
    sigma: float = Field(0.1, ge=0, le=1000, description="σ: deviation of the noise on y")
    eta: float = Field(0.4, gt=0, le=1000, description="η: length of the step on B")
    start: float = Field(0.5, gt=0, lt=1, description="distance from B* at the start")
    steps: int = Field(100, ge=1, le=100_000, description="alternating steps")
    imbalances: tuple[float, ...] = Field(
        (1.0, 0.7, 0.3, 0.1), min_length=1, description="smallest cluster / largest cluster, one or more, 1 = balanced"
    )
    seeds: int = Field(5, ge=1, le=10_000, description="problems of each imbalance, seeds from --seed on")
    seed: int = Field(0, ge=0, description="the first seed")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Validate values; an error is one sentence."""
        for name in values:
            if name not in cls.model_fields:
                close = get_close_matches(name, cls.model_fields, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise InputError(f"{name} = {values[name]!r}: there is no such setting{hint}")
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            raise InputError(sentence(error)) from None
        settings._check()
        return settings

    def _check(self) -> None:
        """Refuse fields that do not go together."""
        if self.latent >= self.dimension:
            raise InputError(f"latent = {self.latent}: must be below dimension = {self.dimension}")
        if self.clusters < self.latent:
            raise InputError(
                f"clusters = {self.clusters}: must be at least latent = {self.latent}, "
                "or no data show every direction of B*"
            )
        if self.clients < self.clusters:
            raise InputError(f"clients = {self.clients}: must be at least clusters = {self.clusters}")
        if self.clients * self.samples * self.dimension > LARGEST_SIZE:
            raise InputError(
                f"samples = {self.samples}: clients × samples × dimension must be at most {LARGEST_SIZE:,}, "
                f"it is {self.clients * self.samples * self.dimension:,}"
            )
        for imbalance in self.imbalances:
            if not 0 < imbalance <= 1:
                raise InputError(f"imbalances = {imbalance:g}: must be above 0 and at most 1")
