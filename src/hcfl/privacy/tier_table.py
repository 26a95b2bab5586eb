"""What each choice of a tier sends to the server, and which privacy modes support some method with it."""

from collections.abc import Iterator
from functools import cache
from itertools import product

from hcfl.config import Mode
from hcfl.methods import Method
from hcfl.methods.choices import CHOICES
from hcfl.methods.compositions import PART, Unchecked
from hcfl.methods.method import conflicts
from hcfl.privacy.rules import OPTIONS, refusal

SENT: dict[str, dict[str, str]] = {
    "formulation": {
        "conditional": "nothing",
        "correlation": "class counts F of each cluster",
        "joint": "sums of embedded inputs, and of their squares",
    },
    "weighting": {
        "single": "nothing",
        "assigned": "nothing: the server decides",
        "assigned-among-all": "nothing: the server decides",
        "hard-by-loss": "its cluster",
        "hard-by-parameters": "its cluster",
        "by-label-distribution": "its cluster, and class counts F",
        "soft-em": "ω̃",
        "sample-wise-em": "ω̃; the weights of its samples stay with it",
        "forgetting-em": "ω̃; the weights of its samples stay with it, and whether its data changed",
        "soft-counts": "ω̃",
        "fuzzy-c-means": "ω̃",
    },
    "adaptation": {
        "fixed": "nothing",
        "split-and-remove": "what the distance needs",
        "split-on-contradiction": "what the distance needs, and class prototypes",
        "split-on-gain": "what the distance needs, and class prototypes of all and of half its samples",
        "split-when-stationary": "what the distance needs, and its own update",
        "split-by-spectrum": "what the distance needs, and its own update",
        "merge-similar": "what the distance needs",
        "hierarchical-once": "what the distance needs",
        "decomposed-cosine-groups": "its own first update",
        "k-means-once": "its own trained parameters",
        "weighted-k-means": "its own trained parameters",
        "loss-vector-groups": "its mean loss on every cluster's model",
        "loss-jump": "its mean loss on every cluster's model",
        "real-drift-groups": "class prototypes with their counts",
        "density-once": "means and standard deviations of its features, of all samples and of each class, once",
        "split-by-interactions": "the mean loss of each epoch of its training",
        "spectral-partition": "its update of one cluster's model, the same for all clients, every few rounds",
        "growing-cohorts": "its own update",
    },
    "distance": {
        "no distance": "nothing",
        "prototype-distance": "class prototypes with their counts, mean feature",
        "conflict-distance": "class prototypes with their counts",
        "feature-norm-distance": "mean norms of features by class",
        "update-cosine": "its own update",
        "update-cosine(of=whole updates)": "its own update",
        "update-cosine(of=first updates)": "its own first update, once",
        "update-cosine(of=models)": "its own trained parameters",
        "parameter-distance": "its own trained parameters",
        "principal-angles": "singular vectors of its data, once",
    },
    "local": {
        "cluster-models": "changes of the clusters' models",
        "cluster-models(towards=global)": "changes of its cluster's model",
        "cluster-models(by_weight=true)": "changes of the clusters' models, and its weights on them",
        "own-model": "one model of its own",
        "own-model(kept=false)": "one model of its own",
        "own-head": "one model of its own",
    },
}
"""By tier and choice, beside the number of samples: what a client sends without privacy."""


def table() -> str:
    """Return the table of `docs/privacy.md`."""
    modes = [mode for mode in OPTIONS if mode != "none"]
    lines = [f"| tier | choice | a client sends | {' | '.join(modes)} |", "|---" * (3 + len(modes)) + "|"]
    for number, (tier, choices) in enumerate(SENT.items(), 1):
        label = f"{number} {tier}" if tier in CHOICES and tier != "local" else "local training"
        for name, sent in choices.items():
            cells = [_possible(tier, name, mode) for mode in modes]
            lines.append(f"| {label} | `{name}` | {sent} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _possible(tier: str, name: str, mode: Mode) -> str:
    """Whether a mode supports any method with this choice: with every engine, simulated only, or not at all."""
    found = methods_with(tier, name)
    if any(refusal(method, mode) is None for method in found):
        return "yes"
    return "simulated" if any(refusal(method, mode, on_flower=False) is None for method in found) else "no"


@cache
def methods_with(tier: str, name: str) -> tuple[Method, ...]:
    """Return all methods that have this choice; local training only with its default settings."""
    return tuple(_methods(tier, name))


def _methods(tier: str, name: str) -> Iterator[Method]:
    usual = {"local": ["cluster-models", "own-model"]}
    options = [[name] if part == tier else usual.get(part, list(PART[part])) for part in PART]
    for names in product(*options):
        choices = {part: PART[part][chosen] for part, chosen in zip(PART, names, strict=True)}
        if not conflicts(Unchecked(**choices)):
            yield Method(**choices)
