"""The sections on clients that fail or attack: which uploads are accepted, and which faults are simulated."""

from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hcfl.config.base_section import Section


class AdmissionConfig(Section):
    """Which uploads are accepted, and how many a round needs."""

    quorum: float = Field(0.5, gt=0, le=1, description="a round counts with at least this share of the sampled clients")
    tries: int = Field(3, ge=1, description="how often a round without a quorum is played before the run stops")
    longest_model: float = Field(
        10.0, gt=1, description="a model is refused that is so many times as long as most others and the one it got"
    )
    longest_change: float | None = Field(
        None,
        gt=0,
        description="a client's change is shortened to so many times the round's median length; default on engine "
        "flower 3, else none is",
    )
    quarantine: float | None = Field(
        None,
        gt=0,
        description="models of clients count for no others whose uploads are, on average, so many deviations unlike "
        "their cluster's; default: all count",
    )


LASTING = ("flip", "scale", "sign", "disguise", "backdoor", "collude", "free_ride")
"""The attacks, whose clients are the same in every round."""


class FaultsConfig(Section):
    """The share of clients with each kind of fault; `drop=0.4,nan=0.1` sets several at once.

    Every round draws its faulty clients anew; the clients that attack (`flip` and all after it) stay the same.
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
    factor: float = Field(10.0, description="what scaling clients multiply their change by; −5 also turns it round")
    sign: float = Field(0.0, ge=0, le=1, description="send their change with the other sign, in every round")
    disguise: float = Field(
        0.0, ge=0, le=1, description="train on flipped labels, and send prototypes, weights and counts of the true ones"
    )
    backdoor: float = Field(
        0.0, ge=0, le=1, description="train on marked inputs with the label `target`, and send statistics of true data"
    )
    target: int = Field(0, ge=0, description="the class that a backdoor leads to")
    collude: float = Field(0.0, ge=0, le=1, description="all send one of them's change, with the other sign")
    free_ride: float = Field(0.0, ge=0, le=1, description="send back the models that they got, untrained")

    @property
    def passing(self) -> dict[str, float]:
        """The shares of the faults that every round draws anew."""
        return self.model_dump(exclude={"deadline", "factor", "target", *LASTING})

    @property
    def lasting(self) -> dict[str, float]:
        """The shares of the attacks, whose clients stay the same."""
        return {kind: getattr(self, kind) for kind in LASTING}

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """Parse `drop=0.4,nan=0.1`; an unknown fault is refused with the list of known ones."""
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
        for names in (tuple(self.passing), LASTING):
            total = sum(getattr(self, name) for name in names)
            if total > 1 + 1e-9:
                shares = ", ".join(f"{name}={getattr(self, name):g}" for name in names if getattr(self, name))
                raise PydanticCustomError("faults", "the shares {shares} must sum up to at most 1", {"shares": shares})
        return self
