"""Every setting of method, model, training, evaluation, personal part and privacy: its default and what is allowed."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hcfl.config.base_section import Section

Precision = Literal["fp32", "tf32", "bf16"]
"""`tf32` rounds the factors of matrix products, `bf16` (which includes it) also what extractors compute in between.
Parameters, averages, weights and distances are single precision in all."""

Order = Literal["heads-first", "together", "auto"]
"""Whether a model with a shared extractor trains its heads first, on frozen features, or both parts in every step;
`auto`: together while there is one cluster, heads first as soon as there are several."""


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
        "proximal (whole model near the group's), mixture (all of these but proximal) or auto (with a model trained "
        "alone, too): each client mixes them with its group's model, with weights by training data that it sets aside",
    )
    after: int | None = Field(
        None,
        ge=1,
        description="the round after which clients note what their candidates gain on the samples that they set aside, "
        "and begin to train on these; default half of the rounds; if it is the last one, they never train on these",
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
