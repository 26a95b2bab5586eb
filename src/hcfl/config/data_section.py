"""The section of the federation: where the samples come from and how they are spread over clients."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hcfl.config.base_section import Section


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
    test_clients: Literal["each", "together"] | None = Field(
        None,
        description="natural federations whose test set is of clients that train nothing: each finds its own weights "
        "(each, the default), or all are one newcomer (together, as in versions before)",
    )
