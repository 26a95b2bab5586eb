"""The sections of the configuration: every setting, its default and what is allowed."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values cannot change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Precision = Literal["fp32", "tf32", "bf16"]
"""`tf32` rounds the factors of matrix products, `bf16` (which includes it) also what extractors compute in between.
Parameters, averages, weights and distances are single precision in all."""

Order = Literal["heads-first", "together", "auto"]
"""Whether a model with a shared extractor trains its heads first, on frozen features, or both parts in every step;
`auto`: together while there is one cluster, heads first as soon as there are several."""


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


def _listed(given: Any) -> Any:
    """Split `a, b` into names."""
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given


def _grouped(given: Any) -> Any:
    """Read `anna=north,ben=south` as a mapping; names and groups become text."""
    if isinstance(given, str) and "=" in given:
        given = dict(pair.split("=", 1) if "=" in pair else (pair, "") for pair in _listed(given))
    return (
        {str(name).strip(): str(group).strip() for name, group in given.items()} if isinstance(given, dict) else given
    )


Columns = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""Names of columns; `a,b,c` on the command line."""


class DataConfig(Section):
    """The federation: where the samples come from and how they are spread over clients."""

    source: str = Field(
        "digits",
        description="digits, cifar10, cifar100, tiny-imagenet, fashion-mnist, hf:OWNER/NAME, a .npz file, a table "
        "(.csv or .parquet, or a folder of one for each client), or a folder of images or parquet files",
    )
    task: Literal["auto", "classification", "regression", "multi-label"] = Field(
        "auto", description="what is predicted: one of several classes, a number, or several labels; auto: by y"
    )
    label: str | None = Field(None, description="tables: the column to predict; a,b,c: several labels, each yes or no")
    client: str | None = Field(None, description="tables: the column that says which client holds a row")
    time: str | None = Field(None, description="tables: a column of dates or numbers; clients hold out their last rows")
    history: int | None = Field(
        None, ge=1, le=10_000, description="forecasts: how many rows of a client, by time, are an input; needs time"
    )
    horizon: int | None = Field(None, ge=1, le=10_000, description="forecasts: how many rows ahead; default 1")
    season: int | None = Field(
        None,
        ge=1,
        description="forecasts: rows of a season (24 hours, 7 days, 12 months), to compare with the last",
    )
    features: Columns | None = Field(None, description="tables: the input columns a,b,c; default: all others")
    drop: Columns | None = Field(None, description="tables: columns a,b,c that are no inputs")
    text: str | None = Field(
        None, description="tables: the column of texts, the only input; needs a language model, hf-model:OWNER/NAME"
    )
    tokenizer: str | None = Field(
        None, description="texts: the language model whose tokenizer reads them; default: the model itself"
    )
    text_length: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="texts: the most tokens of a text; default 64, or what the model reads",
    )
    truth: str | None = Field(None, description="tables: the column of clients' true groups, to measure with only")
    groups: Annotated[str | dict[str, str] | None, BeforeValidator(_grouped)] = Field(
        None,
        description="clusters at the start: the column of each client's group (tables), or CLIENT=GROUP,…; methods go "
        "on from them",
    )
    test: str | None = Field(None, description="tables: the column that is true for rows of the global test set")
    schema_file: str | None = Field(
        None, description="tables: encode by this file, which `hcfl data schema` wrote; default: fitted to the table"
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
    steps: int = Field(
        1, ge=1, description="steps of time: each brings new samples, by data.time or dealt at random (docs/drift.md)"
    )
    drift: str = Field(
        "none",
        description="how simulated clients change from step to step: none, sudden, staggered, recurring, gradual, or "
        "FILE.yaml",
    )
    drift_of: Literal["concept", "corruption", "both"] = Field(
        "concept", description="what changes: the concept, the corruption of the images, or both"
    )
    step_alpha: float | None = Field(
        None,
        gt=0,
        description="label drift: the classes of a client's steps are dealt by Dir(step_alpha); default: alike",
    )
    window: int = Field(1, ge=1, description="steps: clients train on the samples of so many last steps")
    noise: Literal["none", "pair", "symmetric"] = Field("none", description="label noise on train and val")
    noise_rate: float = Field(0.0, ge=0, le=1, description="share of the labels that are flipped")
    val_share: float = Field(0.1, gt=0, lt=1, description="share of each client's samples held out for Val")
    test_share: float = Field(0.2, gt=0, lt=1, description="share set aside for Test where the source has no test set")
    scale: Literal["standardise", "none"] = Field(
        "standardise",
        description="inputs are standardised per channel or feature; none: networks get them as they are, "
        "and whole numbers as whole numbers: token numbers, for example",
    )
    test_on: Literal["halves", "tenth"] | None = Field(
        None,
        description="virtual newcomers find their weights on one half of the test set and are measured on the other, "
        "both ways (halves, the default), or on nine tenths and the last one, as in the paper (tenth)",
    )


class ModelConfig(Section):
    """The network."""

    name: str = Field(
        "auto",
        description="auto, mlp, cnn, cnn1d, gru, mobilenet-v2, resnet-18, efficientnet-lite0, "
        "hf-model:OWNER/NAME (or a folder), or FILE.py:FUNCTION that builds (extractor, head)",
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

    name: str = Field("hcfl++", description="see `hcfl methods`")
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
    clusters: int | None = Field(
        None, ge=1, description="number of clusters at the start; FeSEM, FedGroup, WeCFL: that clients are grouped into"
    )
    rho: float | None = Field(None, gt=0, le=2, description="HCFL+: split when max − mean distance reaches it")
    tol1: float | None = Field(None, gt=0, description="CFL, HCFL′: split when the mean update is shorter, and")
    tol2: float | None = Field(None, gt=0, description="CFL, HCFL′: some client's update is longer than this")
    alpha0: float | None = Field(None, gt=0, lt=1, description="ICFL: α*(0), how coherent a cluster must stay")
    jump: float | None = Field(None, gt=0, description="FedDrift: δ, the rise of the loss that founds a cluster")
    tau: float | None = Field(None, ge=-1, le=1, description="StoCFL: merge clusters with a larger cosine")
    proximal: float | None = Field(None, ge=0, description="FedSoft, StoCFL: λ of λ/2‖θ − anchor‖² in local training")
    period: int | None = Field(
        None, ge=1, description="FedSoft: rounds between two estimates of the weights; CFL-GP: between two probes"
    )
    gaussians: int | None = Field(None, ge=1, description="FedGMM: number of Gaussians on the inputs")
    threshold: float | None = Field(None, gt=0, description="FL+HC, PACFL: distance at which the clustering is cut")
    after: int | None = Field(None, ge=1, description="FL+HC, FLUX, FedDAA: the round after which clients are grouped")
    directions: int | None = Field(None, ge=1, description="PACFL: singular vectors of each client's data")
    clustering: Literal["k-means", "agglomerative"] | None = Field(
        None, description="CLoVE: how vectors of losses are grouped"
    )
    reach: float | None = Field(None, gt=0, description="FLUX: how near is near, in bends of the nearest distances")
    most: int | None = Field(
        None,
        ge=2,
        description="FedGWC: the most groups that a cluster splits into at once; FedDAA: the most groups of clients",
    )
    gain: float | None = Field(None, gt=0, lt=2, description="Auxo: split when two sides differ by it, in 1 − cos")
    smallest: int | None = Field(None, ge=1, description="Auxo: the fewest known clients of each side of a split")
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
    follows: bool | None = Field(
        None,
        description="HCFL++: follow clients that change, with weights that forget, a test of their losses, and "
        "clusters that are remembered; default: where there are steps",
    )
    false_alarms: float | None = Field(
        None, ge=0, lt=1, description="HCFL++, steps: the level of the test that a client's data have changed"
    )
    warm_up: int = Field(0, ge=0, description="rounds in which clusters do not split, merge, move or go yet")

    @model_validator(mode="before")
    @classmethod
    def _as_named_before(cls, given: Any) -> Any:
        """Read the files of version 0.2, in which FedGroup and WeCFL called their number of clusters `groups`."""
        if isinstance(given, dict) and "groups" in given:
            given = dict(given)
            number = given.pop("groups")
            given["clusters"] = number if given.get("clusters") is None else given["clusters"]
        return given


class TrainingConfig(Section):
    """The loop and local training."""

    rounds: int = Field(30, ge=1, description="communication rounds")
    rounds_per_step: int | None = Field(
        None, ge=1, description="steps: rounds of each, rounds is then their product; default: rounds / steps"
    )
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients sampled each round")
    epochs: int | None = Field(None, ge=1, description="local epochs; default 1, for small clients 5")
    batch: int | None = Field(None, ge=1, le=1_000_000, description="batch size; default 128, for small clients 16")
    lr: float = Field(0.06, gt=0, le=1000, description="learning rate")
    schedule: Literal["constant", "cosine", "step"] = Field(
        "constant",
        description="the learning rate over rounds: constant; cosine, from lr to nearly 0; or step, times lr_decay "
        "every lr_every rounds",
    )
    lr_every: int | None = Field(None, ge=1, description="schedule step: rounds between two decays; default a third")
    lr_decay: float | None = Field(None, gt=0, lt=1, description="schedule step: the factor; default 0.1")
    clip_gradient: float | None = Field(
        None,
        gt=0,
        description="shorten each local step's gradient to this norm where it is longer; default: never",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="stop once the likelihood of half of the held-out samples has not grown for so many rounds; "
        "default: play all rounds",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of local training")
    keep_momentum: bool = Field(
        False, description="each client's momentum goes on from its last round; else it is reset every round"
    )
    weight_decay: float = Field(5e-4, ge=0, description="weight decay")
    order: Order | None = Field(
        None,
        description="where clusters share an extractor: train heads first, then the extractor, or both in every step; "
        "auto: both while there is one cluster; default: auto for hcfl++, heads-first for others",
    )
    train: str = Field(
        "all",
        min_length=1,
        description="what clients train: all, heads (the extractor stays as it is), adapters (LoRA), or names and "
        "patterns a,b.* of the extractor's parameters; heads always are; adapters,*.norm.* is both",
    )
    lora_rank: int = Field(4, ge=1, le=4096, description="adapters: the rank of what is added to each weight")
    lora_scale: float = Field(1.0, gt=0, description="adapters: the factor of what is added to each weight")
    lora_layers: str = Field(
        "*", min_length=1, description="adapters: names and patterns a,b.* of the linear and 1×1 layers that get one"
    )
    class_weights: str | None = Field(
        None, description="how much samples of each class count in training: balanced, or a=3,b=1; default: the same"
    )
    loss: str | None = Field(
        None, description="FILE.py:FUNCTION, a log-likelihood of your own: (outputs, answers) → log p(y|x) per sample"
    )
    drop_last: bool = Field(
        False, description="leave out the last batch of an epoch where it is not full, unless it is the only one"
    )


class EvaluationConfig(Section):
    """When and how Val and Test are measured."""

    evaluate_every: int = Field(1, ge=1, description="rounds between two measurements; the last is always measured")
    serve: Literal["best", "last"] = Field(
        "best",
        description="the round whose models are served: the best by the likelihood of half of the held-out samples, "
        "kept beside the last, or the last alone",
    )
    val_clients: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        None,
        description="how many clients' held-out data measure Val, drawn once by the seed, or all; default all, of more "
        "than 2000 clients 2000, with a standard error",
    )
    groups_kept: bool = Field(
        True,
        description="given groups: at the end, also train one model for each group as it was given, to say whether "
        "leaving them paid; not with noise or sealed uploads, nor on Flower",
    )
    newcomers: Literal["persistent", "fresh"] = Field(
        "persistent",
        description="virtual newcomers keep their weights through the run, or start anew each time",
    )
    plain_newcomers: bool = Field(
        False,
        description="FedRC and its HCFL+: virtual newcomers find their weights without P_k, by log p_k(y|x)",
    )


PersonalKind = Literal["none", "prior", "head", "fine-tune", "proximal", "mixture", "auto"]
"""What each client adds to the model of its group, after training, on its own data."""


class PersonalConfig(Section):
    """The personal part: what each client adds to its group's model; it never leaves the client."""

    kind: PersonalKind = Field(
        "none",
        description="none, prior (own class frequencies), head (own head near the group's), fine-tune (whole model), "
        "proximal (whole model near the group's), mixture (of group and own), or auto: each client chooses by its own "
        "held-out training data",
    )
    after: int | None = Field(
        None,
        ge=1,
        description="the round after which clients choose their personal part and begin to train on the samples that "
        "they set aside to choose by; default half of the rounds; if it is the last one, they never train on these",
    )
    personal_every: int | None = Field(
        None, ge=1, description="rounds between two measurements of the personal part; default: only after the last"
    )


Mode = Literal["none", "local-dp", "central-dp", "secagg"]
"""Ways to hide clients' uploads from the server, or from other parties that see its models."""


class PrivacyConfig(Section):
    """How uploads are protected, so that they reveal less about clients' data."""

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
