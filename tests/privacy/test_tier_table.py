"""What each choice of a tier tells is on the page, for every choice there is."""

from pathlib import Path

from hcfl.methods.compositions import PART
from hcfl.privacy.tier_table import SENT, table

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"


def test_every_choice_is_there_and_the_page_has_the_table():
    assert {tier: set(choices) for tier, choices in SENT.items()} == {tier: set(PART[tier]) for tier in SENT}
    assert set(PART) - set(SENT) == {"topology", "clusters"}
    found = table()
    assert found in PAGE.read_text(encoding="utf-8")
    cells = {
        line.split("|")[2].strip(" `"): [cell.strip() for cell in line.split("|")[4:7]] for line in found.splitlines()
    }
    assert cells["sample-wise-em"] == ["yes", "yes", "yes"]
    assert cells["joint"] == ["no", "no", "yes"]
    assert cells["split-and-remove"] == ["simulated", "no", "no"]
    assert cells["principal-angles"] == ["no", "no", "no"]
