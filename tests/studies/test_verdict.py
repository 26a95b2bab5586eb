"""What is ahead, beyond the spread over seeds, and the sentences that say so."""

from hcfl.studies.seeds import Statistic
from hcfl.studies.verdict import ahead, verdict, with_personal


def numbers(**groups):
    return list(groups), [{"val_last": val, "test_last": test} for val, test in groups.values()]


def test_ahead_is_beyond_the_spread_of_both():
    assert ahead(Statistic(0.9, 0.02), Statistic(0.8, 0.07), "largest")
    assert not ahead(Statistic(0.9, 0.04), Statistic(0.8, 0.07), "largest")
    assert ahead(Statistic(1.0, 0.1), Statistic(2.0, 0.1), "smallest")
    assert not ahead(Statistic(0.9, None), Statistic(0.1, None), "largest"), "one seed has no spread"


def test_a_verdict_names_what_is_ahead_and_what_is_not():
    labels, found = numbers(
        wecfl=(Statistic(0.91, 0.01), None),
        fedavg=(Statistic(0.85, 0.02), None),
        ifca=(Statistic(0.90, 0.02), None),
    )
    assert verdict(labels, found) == (
        "In Val, wecfl is ahead of fedavg by 6.0 points; the other differences from it are within the spread."
    )


def test_personal_val_is_judged_beside_val_where_rows_without_personal_parts_have_their_val():
    local, group = Statistic(0.94, 0.01), Statistic(0.85, 0.01)
    rows = [
        {"val_last": local, "val_personal_last": None, "test_last": None},
        {"val_last": group, "val_personal_last": Statistic(0.98, 0.01), "test_last": None},
    ]
    assert with_personal(rows)[0]["val_personal_last"] == local
    assert with_personal(rows)[1] == rows[1]
    assert with_personal(rows[:1]) == rows[:1], "nobody has personal parts"
    assert verdict(["local", "hcfl++"], with_personal(rows)) == (
        "In Val, local is ahead of hcfl++ by 9.0 points. In personal Val, hcfl++ is ahead of local by 4.0 points."
    )


def test_a_verdict_of_equals_and_of_one_seed():
    labels, found = numbers(a=(Statistic(0.9, 0.1), None), b=(Statistic(0.8, 0.1), None))
    assert verdict(labels, found) == "In Val, all differences are within the spread over seeds."
    labels, found = numbers(a=(Statistic(0.9, None), None), b=(Statistic(0.8, None), Statistic(0.7, None)))
    assert verdict(labels, found) == (
        "a has the highest Val, 10.0 points above b; with one seed each, whether that is more than chance is not known."
    )
    assert verdict(["a"], found[:1]) == ""
