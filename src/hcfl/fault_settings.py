"""The settings of what goes wrong in a federation: which uploads count, and which faults are simulated."""

from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hcfl.section import Section


class AdmissionConfig(Section):
    """Which uploads count, and how many a round needs."""

    quorum: float = Field(0.5, gt=0, le=1, description="a round counts with at least this share of the sampled clients")
    tries: int = Field(3, ge=1, description="how often a round without a quorum is played before the run stops")
    longest_model: float = Field(
        10.0, gt=1, description="a model is refused that is so many times as long as most others and the one it got"
    )


class FaultsConfig(Section):
    """Which share of the clients fails how. Written as a whole: `drop=0.4,nan=0.1`.

    Except for the last kinds, who fails is drawn anew in every round; flipping and scaling clients stay the same.
    """

    drop: float = Field(0.0, ge=0, le=1, description="drop out before they train")
    drop_after: float = Field(0.0, ge=0, le=1, description="drop out after they trained, before they answered")
    straggle: float = Field(0.0, ge=0, le=1, description="are slow: take 1/u of the usual time, u uniform in (0, 1]")
    deadline: float = Field(2.0, ge=1, description="stragglers are too late after so many times the usual time")
    nan: float = Field(0.0, ge=0, le=1, description="send a parameter that is NaN")
    inf: float = Field(0.0, ge=0, le=1, description="send a parameter that is infinite")
    shape: float = Field(0.0, ge=0, le=1, description="send tensors of another shape")
    clusters: float = Field(0.0, ge=0, le=1, description="answer for one cluster too many")
    stale: float = Field(0.0, ge=0, le=1, description="send the upload of the round before")
    sizes: float = Field(0.0, ge=0, le=1, description="claim a million times the samples that they have")
    norm: float = Field(0.0, ge=0, le=1, description="send a model a million times as long")
    prototypes: float = Field(0.0, ge=0, le=1, description="forge the prototypes of their data")
    weights: float = Field(0.0, ge=0, le=1, description="send weights that sum up to more than 1")
    flip: float = Field(0.0, ge=0, le=1, description="train on flipped labels, y → C−1−y, in every round")
    scale: float = Field(0.0, ge=0, le=1, description="send their change times `factor`, in every round")
    factor: float = Field(10.0, description="what scaling clients multiply their change by; −1 turns it round")

    @property
    def passing(self) -> dict[str, float]:
        """The share of each kind that is drawn anew in every round, in their order."""
        return self.model_dump(exclude={"deadline", "flip", "scale", "factor"})

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """Read `drop=0.4,nan=0.1`; say which faults there are, where one is unknown."""
        if isinstance(given, str):
            pairs = [pair.partition("=") for pair in given.split(",") if pair.strip()]
            if not all(equals for _, equals, _ in pairs):
                raise PydanticCustomError("faults", "must look like drop=0.4,nan=0.1")
            given = {name.strip().replace("-", "_"): value.strip() for name, _, value in pairs}
        for name in given if isinstance(given, dict) else ():
            if name not in cls.model_fields:
                told = {"name": name, "names": ", ".join(cls.model_fields)}
                raise PydanticCustomError("faults", "there is no fault {name}; there are {names}", told)
        return given

    @model_validator(mode="after")
    def _exclude_each_other(self) -> Self:
        for names in (tuple(self.passing), ("flip", "scale")):
            total = sum(getattr(self, name) for name in names)
            if total > 1 + 1e-9:
                shares = ", ".join(f"{name}={getattr(self, name):g}" for name in names if getattr(self, name))
                raise PydanticCustomError("faults", "the shares {shares} must sum up to at most 1", {"shares": shares})
        return self
