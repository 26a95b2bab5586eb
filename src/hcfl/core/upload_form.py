"""What may arrive in one client's upload, described once: for every field its type, its shape and its range.

`problem_with_form` walks through the description before anything else looks at the upload. What depends on several
numbers at once (weights sum up to 1, for example) is checked afterwards, by `admission.refusals`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hcfl.core.held_out import LIKELIHOOD
from hcfl.core.setting import Setting
from hcfl.core.state import Update
from hcfl.models.ensemble import Ensemble, embed, flatten
from hcfl.tiers import Signs
from hcfl.tiers.gaussians import Gaussians

SINGLE, DOUBLE, WHOLE = torch.float32, torch.float64, torch.int64

EXAMPLES = 64
"""How many random samples are an example of a client's data."""

FARTHEST = 1e12
"""No sum of embedded inputs is larger: the server squares the sums."""


@dataclass(frozen=True)
class Form:
    """What one field has to be."""

    dtype: torch.dtype
    axes: tuple[str, ...]
    """The name of each axis: axes of the same name have the same length."""
    lowest: float | None = None
    highest: float | None = None
    """The range, where a number can be judged by itself; NaN is in no range."""


FORMS: Mapping[str, Form] = {
    "weights": Form(SINGLE, ("client", "clusters")),
    "sizes": Form(SINGLE, ("client",)),
    "row_participants": Form(WHOLE, ("rows",)),
    "started": Form(SINGLE, ("rows", "clusters")),
    "mass": Form(SINGLE, ("rows", "clusters")),
    "objective": Form(SINGLE, ("client",)),
    "counts": Form(SINGLE, ("client", "clusters", "classes")),
    "prototypes.class_means": Form(SINGLE, ("client", "classes", "features")),
    "prototypes.class_counts": Form(SINGLE, ("client", "classes")),
    "prototypes.mean": Form(SINGLE, ("client", "features")),
    "halves.class_means": Form(SINGLE, ("client", "classes", "features")),
    "halves.class_counts": Form(SINGLE, ("client", "classes"), lowest=0),
    "halves.mean": Form(SINGLE, ("client", "features")),
    "moments.mass": Form(DOUBLE, ("gaussians",), lowest=0, highest=FARTHEST),
    "moments.first": Form(DOUBLE, ("gaussians", "dimensions"), lowest=-FARTHEST, highest=FARTHEST),
    "moments.second": Form(DOUBLE, ("products", "dimensions"), lowest=-FARTHEST, highest=FARTHEST),
    "held_out": Form(SINGLE, ("client", "right and samples")),
    "by_class": Form(SINGLE, ("client", "right, labels, predicted", "classes"), lowest=0),
}
"""Every tensor of an upload but the models and the signature, which have the form of what the server sent out."""

OPTIONAL = ("counts", "prototypes", "halves", "moments", "held_out", "by_class")
"""What only some methods, or some engines, ask for."""

LENGTHS = {"client": 1, "right and samples": 2, "right, labels, predicted": 3}
"""Axes whose length is always the same."""


@dataclass(frozen=True)
class Wanted:
    """What the server asked one client for, by its own configuration: nothing that the client says decides it."""

    parts: frozenset[str]
    """Which of `OPTIONAL`."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """The lengths of axes, as far as the server knows them."""
    signature: bool = False
    """Whether the client has to send a signature: it takes part for the first time."""
    signature_shape: tuple[int, ...] | None = None
    """The shape of the signature, if the server knows it."""
    reports: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The reports that were asked for, and the shape of each."""


def problem_with_form(update: Update, clusters: int, wanted: Wanted | None) -> str | None:
    """Return what is wrong with the types, shapes and ranges of an upload's fields, or None.

    `wanted` is None where the upload was computed in this process: then it may have any of the optional parts.
    """
    if update.sealed is not None or update.noised:
        return "sent an update that says that it is a sum or has noise, but neither was asked for"
    if wanted is not None and (problem := _presence(update, wanted)):
        return problem
    lengths = {**LENGTHS, "clusters": clusters, **({} if wanted is None else wanted.lengths)}
    for name, tensor in _fields(update):
        if problem := _field_problem(name, tensor, FORMS[name], lengths):
            return problem
    if lengths["rows"] not in (1, clusters):
        return f"sent {lengths['rows']} models, but {' or '.join(map(str, sorted({1, clusters})))} is needed"
    return None if wanted is None else _signature_problem(update, wanted) or _report_problem(update, wanted)


def wanted_of(
    setting: Setting,
    received: Ensemble,
    gaussians: Gaussians | None,
    new: bool,
    measured: bool,
    round_: int,
    clusters: int,
) -> Wanted:
    """Return what a client is asked for beside its models, in a round that sends it these models.

    `gaussians` are those of the broadcast; `new`: the client takes part for the first time; `measured`: clients measure
    the models on what they hold out; `clusters`: how many there are, also where the client gets one model.
    """
    method, needs = setting.method, setting.method.needs
    compares = method.topology == "split" and bool({"prototypes", "feature norms"} & needs)
    parts = {
        "counts": method.uses_class_shares,
        "prototypes": compares,
        "halves": method.topology == "split" and "half prototypes" in needs,
        "moments": method.formulation.gaussians > 0,
        "held_out": measured,
        "by_class": measured and setting.network.task.name == "classification",
    }
    lengths, weight = {"classes": setting.federation.classes}, received.heads.get("weight")
    if setting.network.plain_head(received.heads) and weight is not None:
        lengths |= {"features": weight.shape[-1], "dimensions": weight.shape[-1], "products": weight.shape[-1]}
    if compares and "prototypes" not in needs:
        lengths["features"] = 1
    if gaussians is None:
        lengths["gaussians"] = 1
    else:
        number, dimensions = gaussians.means.shape
        lengths |= {"gaussians": number, "dimensions": dimensions, "products": number}
    return Wanted(
        frozenset(name for name, asked in parts.items() if asked),
        lengths,
        signature=new and bool({"first updates", "signatures"} & needs),
        signature_shape=_signature_shape(setting, received) if new else None,
        reports=_reports(setting, received, round_, clusters)
        | ({LIKELIHOOD: (2,)} if measured and setting.stops_early else {}),
    )


def _reports(setting: Setting, received: Ensemble, round_: int, clusters: int) -> dict[str, tuple[int, ...]]:
    """Return the reports that clients are asked for in a round, each with its shape."""
    federation, network = setting.federation, setting.network

    def parameters() -> int:
        one = received.select([0])
        return flatten(one.heads, one.extractors, network.buffers).shape[1]

    def features() -> int:
        return embed(network, received.extractor(0), torch.zeros(1, *federation.shape)).shape[1]

    shapes: dict[str, Callable[[], tuple[int, ...]]] = {
        "losses": lambda: (clusters,),
        "training losses": lambda: (setting.sgd.epochs,),
        "probes": lambda: (parameters(),),
        "descriptors": lambda: (federation.classes + 1, 1 + 2 * features()),
    }
    return {name: shapes[name]() for name in setting.method.reports_in(round_)}


def _signature_shape(setting: Setting, received: Ensemble) -> tuple[int, ...] | None:
    """Return the shape of what clients send once: known for updates; for other signatures, found by an example."""
    method, federation = setting.method, setting.federation
    if "first updates" in method.needs:
        first = received.select([0])
        return (flatten(first.heads, first.extractors, setting.network.buffers).shape[1],)
    if "signatures" in method.needs and isinstance(method.distance, Signs):
        example = torch.rand(EXAMPLES, *federation.shape, generator=torch.Generator().manual_seed(0))
        try:
            return tuple(method.distance.signature(example, torch.arange(EXAMPLES) % federation.classes).shape)
        except Exception:  # a user's own distance may not accept an example: then the others' shapes decide
            return None
    return None


def _presence(update: Update, wanted: Wanted) -> str | None:
    """Compare which optional parts came with those that were asked for."""
    for name in OPTIONAL:
        if (came := getattr(update, name) is not None) != (name in wanted.parts):
            return f"sent {name}, which was not asked for" if came else f"sent no {name}"
    if bool(update.signatures) != wanted.signature:
        return "sent no signature" if wanted.signature else "sent a signature, which was not asked for"
    return None


def _fields(update: Update) -> Iterator[tuple[str, Tensor]]:
    """Return the fields that came, by their names in `FORMS`."""
    for name in FORMS:
        value: object = update
        for part in name.split("."):
            value = getattr(value, part, None)
        if isinstance(value, Tensor):
            yield name, value


def _field_problem(name: str, tensor: Tensor, form: Form, lengths: dict[str, int]) -> str | None:
    """Check one field; an axis whose length is not known yet gets the length that it has here."""
    if tensor.dtype != form.dtype:
        return f"sent {name} as {_name(tensor.dtype)}, but {_name(form.dtype)} is needed"
    shape = tuple(tensor.shape)
    if len(shape) == len(form.axes):
        for axis, length in zip(form.axes, shape, strict=True):
            lengths.setdefault(axis, length)
    needed = tuple(lengths.get(axis, axis) for axis in form.axes)
    if shape != needed:
        return f"sent {name} of shape {shape}, but ({', '.join(map(str, needed))}{',' * (len(needed) == 1)}) is needed"
    return f"sent {name} out of range" if _out_of_range(tensor, form) else None


def _out_of_range(tensor: Tensor, form: Form) -> bool:
    """Whether some number is outside a form's range; NaN is."""
    low = form.lowest is not None and not bool((tensor >= form.lowest).all())
    return low or (form.highest is not None and not bool((tensor <= form.highest).all()))


def _signature_problem(update: Update, wanted: Wanted) -> str | None:
    for signature in update.signatures.values():
        if signature.dtype != torch.float32:
            return f"sent a signature as {_name(signature.dtype)}, but float32 is needed"
        if wanted.signature_shape is not None and tuple(signature.shape) != wanted.signature_shape:
            return f"sent a signature of shape {tuple(signature.shape)}, but {wanted.signature_shape} is needed"
    return None


def _report_problem(update: Update, wanted: Wanted) -> str | None:
    if missing := sorted(wanted.reports.keys() - update.reports.keys()):
        return f"sent no {missing[0]}"
    for name, report in update.reports.items():
        if name not in wanted.reports:
            return f"sent {name}, which was not asked for"
        shape = wanted.reports[name]
        if report.dtype != SINGLE:
            return f"sent {name} as {_name(report.dtype)}, but float32 is needed"
        if tuple(report.shape) != (1, *shape):
            return f"sent {name} of shape {tuple(report.shape)}, but {(1, *shape)} is needed"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
