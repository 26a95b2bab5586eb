"""Which of several configurations is ahead, beyond the spread over seeds, and a sentence that says so."""

from collections.abc import Sequence

from hcfl.studies.seeds import Statistic

NAMES: dict[str, str] = {"val_last": "Val", "val_personal_last": "personal Val", "test_last": "Test"}
"""What a verdict is about, in this order."""

Numbers = dict[str, Statistic | None]
"""The numbers of one row of a table, by the key of their column."""


def with_personal(numbers: Sequence[Numbers]) -> list[Numbers]:
    """Return rows that can be compared by personal Val: where others have it, one without personal parts has its Val.

    >>> rows = [{"val_last": 0.9, "val_personal_last": None}, {"val_last": 0.7, "val_personal_last": 0.8}]
    >>> [row["val_personal_last"] for row in with_personal(rows)]
    [0.9, 0.8]
    """
    if all(row.get("val_personal_last") is None for row in numbers):
        return list(numbers)
    own, groups = "val_personal_last", "val_last"
    return [{**row, own: row[groups] if row.get(own) is None else row[own]} for row in numbers]


def ahead(one: Statistic, other: Statistic, best: str) -> bool:
    """Whether a number is better beyond the spread of both: mean ± deviation do not touch. One seed has no spread.

    >>> ahead(Statistic(0.9, 0.01), Statistic(0.8, 0.02), "largest")
    True
    """
    if one.std is None or other.std is None:
        return False
    gap = one.mean - other.mean if best == "largest" else other.mean - one.mean
    return gap > one.std + other.std


def verdict(labels: Sequence[str], numbers: Sequence[Numbers]) -> str:
    """Return a sentence on Val, personal Val and Test: which group is ahead of which, beyond the spread over seeds."""
    told = [_verdict(name, labels, [each.get(key) for each in numbers]) for key, name in NAMES.items()]
    return " ".join(sentence for sentence in told if sentence)


def _verdict(name: str, labels: Sequence[str], numbers: Sequence[Statistic | None]) -> str:
    known = sorted(
        ((number, label) for number, label in zip(numbers, labels, strict=True) if number is not None),
        key=lambda pair: -pair[0].mean,
    )
    if len(known) < 2:
        return ""
    (best, leader), others = known[0], known[1:]
    if any(number.std is None for number, _ in known):
        second, label = others[0]
        points = 100 * (best.mean - second.mean)
        return (
            f"{leader} has the highest {name}, {points:.1f} points above {label}; "
            "with one seed each, whether that is more than chance is not known."
        )
    behind = [(100 * (best.mean - number.mean), label) for number, label in others if ahead(best, number, "largest")]
    if not behind:
        return f"In {name}, all differences are within the spread over seeds."
    told = " and ".join(f"of {label} by {points:.1f} points" for points, label in behind[:3])
    more = f" and of {len(behind) - 3} more" if len(behind) > 3 else ""
    rest = "" if len(behind) == len(others) else "; the other differences from it are within the spread"
    return f"In {name}, {leader} is ahead {told}{more}{rest}."
