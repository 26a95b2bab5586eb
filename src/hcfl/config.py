"""The experiment as one validated object; YAML in, YAML out.

A field left at `null` takes the default of its source or method; the configuration that a run writes has them filled
in, so that running it again gives the same numbers.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, Field, ValidationError

from hcfl import scenarios
from hcfl.errors import InputError
from hcfl.fault_settings import AdmissionConfig, FaultsConfig
from hcfl.precision import Precision
from hcfl.section import Section
from hcfl.training import Order
from hcfl.yaml_files import parse, read_yaml


class DataConfig(Section):
    """The federation: where the samples come from and how they are spread over clients."""

    source: str = Field(
        "digits",
        description="digits, cifar10, cifar100, tiny-imagenet, fashion-mnist, hf:OWNER/NAME, a .npz file, "
        "or a folder of images or parquet files",
    )
    scenario: str | None = Field(
        None,
        description="settings by name (see `hcfl scenarios`) or FILE.yaml; all that is given wins over it",
    )
    data_dir: str | None = Field(None, description="where local copies of named sources lie; default $HCFL_DATA")
    cache_dir: str | None = Field(None, description="where decoded images are kept; default $HCFL_CACHE")
    resize: int | None = Field(None, ge=1, le=4096, description="image files: scale to this many pixels, square")
    samples: int | None = Field(None, ge=2, description="use only so many training (and test) samples, at random")
    copies: int = Field(
        1, ge=1, le=100, description="deal the training set so many times: an image can then be with several clients"
    )
    kind: Literal["auto", "image", "series", "vector"] = Field(
        "auto", description="what x holds; auto decides by shape: (N,H,W[,C]), (N,T,D) or (N,D)"
    )
    clients: int | None = Field(None, ge=1, description="number of clients")
    partition: Literal["lda", "classes", "iid", "natural"] | None = Field(
        None, description="how samples are dealt to clients; natural: the file says so itself"
    )
    alpha: float | None = Field(None, gt=0, description="lda: Dirichlet concentration; small = strong label shift")
    alpha_reading: Literal["per-class", "total"] | None = Field(
        None, description="lda: α is the concentration of one class, Dir(α·C·p), or of all, Dir(α·p)"
    )
    classes_per_client: int | None = Field(None, ge=1, description="classes: how many each client holds")
    grouping: Literal["grouped", "random"] | None = Field(
        None, description="classes: disjoint groups of classes, or drawn by each client"
    )
    concepts: int | None = Field(None, ge=1, description="number of concepts when beta > 0")
    beta: float | None = Field(None, ge=0, le=1, description="share of the classes that concepts relabel; 0 = none")
    beta_reading: Literal["plus-one", "literal"] = Field(
        "plus-one", description="rotate the first ⌊Cβ⌋+1 labels, or ⌊Cβ⌋"
    )
    corruptions: Literal["none", "random"] = Field(
        "none", description="random: each client's images have one of 20 corruptions, with a severity from 1 to 5"
    )
    corrupted_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="corruptions random: exactly this share of the clients has one of the 19 real ones, the others none"
        "; default: every client draws among 20",
    )
    noise: Literal["none", "pair", "symmetric"] = Field("none", description="label noise on train and val")
    noise_rate: float = Field(0.0, ge=0, le=1, description="share of the labels that are flipped")
    val_share: float = Field(0.1, gt=0, lt=1, description="share of each client's samples held out for Val")
    test_share: float = Field(0.2, gt=0, lt=1, description="share set aside for Test where the source has no test set")


class ModelConfig(Section):
    """The network."""

    name: str = Field(
        "auto",
        description="auto, mlp, cnn, cnn1d, mobilenet-v2, resnet-18, efficientnet-lite0, "
        "or FILE.py:FUNCTION that builds (extractor, head)",
    )
    norm: Literal["batch", "group"] | None = Field(
        None, description="the last three of them: how they normalise; default batch"
    )
    stem: Literal["original", "small"] | None = Field(
        None, description="the same: small keeps the resolution of small images in the first layers; default original"
    )
    pretrained: str | None = Field(
        None, description="the same: start from none, imagenet, or a FILE (.pth, .safetensors); default none"
    )
    dropout: float | None = Field(
        None, ge=0, lt=1, description="the same: share of the features dropped before the head in training; default 0"
    )


class MethodConfig(Section):
    """A named method and its settings."""

    name: str = Field("hcfl+(fedrc)", description="see `hcfl methods`")
    formulation: str | None = Field(
        None, description="replace tier 1: conditional, correlation, joint, or FILE.py:CLASS"
    )
    weighting: str | None = Field(None, description="replace tier 2: soft-em, hard-by-loss, …, or FILE.py:CLASS")
    adaptation: str | None = Field(None, description="replace tier 3: split-and-remove(rho=0.1), …, or FILE.py:CLASS")
    distance: str | None = Field(None, description="replace tier 4: update-cosine, …, none, or FILE.py:CLASS")
    local: str | None = Field(None, description="replace what clients train: own-model, …, or FILE.py:CLASS")
    topology: Literal["split", "full"] | None = Field(None, description="replace it: shared φ and K heads, or K models")
    aggregation: str | None = Field(
        None, description="replace the mean: median, trimmed-mean, clip, multi-krum, or FILE.py:CLASS"
    )
    clusters: int | None = Field(None, ge=1, description="number of clusters at the start")
    rho: float | None = Field(None, gt=0, le=2, description="HCFL+: split when max − mean distance reaches it")
    tol1: float | None = Field(None, gt=0, description="CFL, HCFL′: split when the mean update is shorter, and")
    tol2: float | None = Field(None, gt=0, description="CFL, HCFL′: some client's update is longer than this")
    alpha0: float | None = Field(None, gt=0, lt=1, description="ICFL: α*(0), how coherent a cluster must stay")
    tau: float | None = Field(None, ge=-1, le=1, description="StoCFL: merge clusters with a larger cosine")
    proximal: float | None = Field(None, ge=0, description="FedSoft, StoCFL: λ of λ/2‖θ − anchor‖² in local training")
    period: int | None = Field(None, ge=1, description="FedSoft: rounds between two estimates of the weights")
    gaussians: int | None = Field(None, ge=1, description="FedGMM: number of Gaussians on the inputs")
    groups: int | None = Field(None, ge=2, description="FedGroup, WeCFL: number of groups")
    threshold: float | None = Field(None, gt=0, description="FL+HC, PACFL: distance at which the clustering is cut")
    after: int | None = Field(None, ge=1, description="FL+HC: the round after which clients are grouped")
    directions: int | None = Field(None, ge=1, description="PACFL: singular vectors of each client's data")
    zero_empty: bool | None = Field(None, description="IFCA, FeSEM: zero a cluster without clients, a public bug")
    max_coordinate: bool | None = Field(None, description="CFL: compare tol2 with the largest coordinate, a public bug")
    lost_ids: bool | None = Field(None, description="CFL: take positions in a cluster for client ids, a public bug")
    from_start: bool | None = Field(None, description="ICFL: α* starts at alpha0 instead of 0")
    cosine_of: Literal["updates", "parameters"] | None = Field(
        None, description="ICFL: compare clients by their updates, or by what they trained, as the authors' code does"
    )
    uniform_split: bool | None = Field(
        None, description="HCFL+, soft: a split makes every client's ω̃ uniform and halves samples' only, a public habit"
    )
    independent_start: bool | None = Field(
        None, description="FeSEM: K models drawn apart at the start instead of one, then k-means of trained parameters"
    )
    mu: float | None = Field(None, ge=0, le=1, description="HCFL+: μ̃, how freely samples leave their client's weights")
    warm_up: int = Field(0, ge=0, description="rounds in which clusters do not split, merge, move or go yet")


class TrainingConfig(Section):
    """The loop and local training."""

    rounds: int = Field(30, ge=1, description="communication rounds")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients sampled each round")
    epochs: int | None = Field(None, ge=1, description="local epochs; default 1, for small clients 5")
    batch: int | None = Field(None, ge=1, le=1_000_000, description="batch size; default 128, for small clients 16")
    lr: float = Field(0.06, gt=0, le=1000, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of local training")
    keep_momentum: bool = Field(
        False, description="each client's momentum goes on from its last round; else it is reset every round"
    )
    weight_decay: float = Field(5e-4, ge=0, description="weight decay")
    order: Order = Field(
        "heads-first",
        description="where clusters share an extractor: train heads first, then the extractor, or both in every step",
    )
    drop_last: bool = Field(
        False, description="leave out the last batch of an epoch where it is not full, unless it is the only one"
    )


class EvaluationConfig(Section):
    """When and how Val and Test are measured."""

    evaluate_every: int = Field(1, ge=1, description="rounds between two measurements; the last is always measured")
    newcomers: Literal["persistent", "fresh"] = Field(
        "persistent",
        description="virtual newcomers keep their weights through the run, or start anew each time",
    )
    plain_newcomers: bool = Field(
        False,
        description="FedRC and its HCFL+: virtual newcomers find their weights without P_k, by log p_k(y|x)",
    )


Mode = Literal["none", "local-dp", "central-dp", "secagg"]
"""Ways to keep clients' uploads from the server, or from whoever sees its models."""


class PrivacyConfig(Section):
    """What is done to uploads so that less is learnt from them."""

    mode: Mode = Field(
        "none",
        description="none, local-dp (clients add noise), central-dp (the server does), "
        "or, on engine flower, secagg (the server sees sums only)",
    )
    clip: float | None = Field(
        None, gt=0, description="local-dp, central-dp: how far one client can move the models; default 1"
    )
    epsilon: float | None = Field(None, gt=0, le=1, description="local-dp: ε of one upload; default 1")
    noise_multiplier: float | None = Field(
        None,
        gt=0,
        description="deviation of the noise, in units of what one client can change; central-dp: default 1, "
        "local-dp: instead of epsilon",
    )
    delta: float | None = Field(None, gt=0, lt=1, description="local-dp, central-dp: δ; default 1e-5")


class Config(Section):
    """One experiment."""

    method: MethodConfig = MethodConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    admission: AdmissionConfig = AdmissionConfig()
    faults: FaultsConfig | None = Field(
        None, description="simulate clients that fail: drop=0.4,nan=0.1 (docs/faults.md has all kinds)"
    )
    seed: int = Field(0, ge=0, description="the seed of everything")
    engine: Literal["auto", "sequential", "batched", "flower"] = Field(
        "auto",
        description="one client after another, all as one program, or Flower's simulation; "
        "auto: batched where that is faster, else sequential",
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:1, …")
    precision: Precision = Field(
        "fp32", description="fp32; on GPUs tf32 and bf16 are faster and coarser (averages and distances stay fp32)"
    )
    compile: bool | None = Field(
        None, description="batched, on a GPU: compile the network, minutes once; default: images and 20 rounds or more"
    )
    checkpoint_every: int | None = Field(
        None, ge=1, description="rounds between two checkpoints; default: as often as 5% of the time allows"
    )
    checkpoints_kept: int = Field(2, ge=1, description="how many checkpoints stay, in case the newest is damaged")
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; default 1 for small models, else all")

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Validate nested values; what is wrong is said in one sentence."""
        try:
            return cls.model_validate(scenarios.applied(values, DataConfig.model_fields))
        except ValidationError as error:
            raise InputError(sentence(error)) from None

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
}
"""Names for people that differ from the field's own; every other field is called by its last name."""


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


def field_at(path: str) -> Any:
    """Return the pydantic field of a dotted path."""
    section, _, leaf = path.rpartition(".")
    owner: type[BaseModel] = Config
    if section:
        annotation = Config.model_fields[section].annotation
        assert isinstance(annotation, type)
        owner = annotation
    return owner.model_fields[leaf]


def assign(values: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in nested values."""
    keys = path.split(".")
    if not all(keys):
        raise InputError(f"{path!r} = {value!r}: must be a field's path, such as data.alpha")
    node = values
    for key in keys[:-1]:
        if node.get(key) is None:
            node[key] = {}
        if not isinstance(node[key], dict):
            raise InputError(f"{path} = {value!r}: {key} is not a section here, but {node[key]!r}")
        node = node[key]
    node[keys[-1]] = value


def from_flat(**settings: Any) -> Config:
    """Build a configuration from short names, as flags and `hcfl.run` use them."""
    paths = flat_fields()
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in paths:
            close = get_close_matches(name, paths, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"{name} = {value!r}: there is no such setting{hint}")
        assign(values, paths[name], value)
    return Config.parse(values)


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
