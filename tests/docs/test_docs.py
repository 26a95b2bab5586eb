"""Every code block and command in README and docs runs; every link leads somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from hcfl.cli import main
from hcfl.config import Config
from helpers import blobs

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def my_arrays():
    """Stand in for the arrays that a reader of the README has."""
    x, y = blobs(per_class=60)
    return x, y, y % 2


def run_commands(text):
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words or line == ". .venv/bin/activate":
            continue
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        else:
            assert words[0] == "hcfl", f"{line}: a test does not know how to run this"
            if "--help" in words:
                with pytest.raises(SystemExit, match="0"):
                    main(words[1:])
            else:
                assert main(words[1:]) == 0, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_runs_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    for language, note, text in blocks:
        if language == "bash":
            run_commands(text)
        else:
            assert language == "python"
            names = names if note.strip() == "continue" else {"my_arrays": my_arrays}
            exec(compile(text, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    """On a disk and on GitHub; tests/docs/test_site.py looks at the site's own."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, heading = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        assert not heading or heading in anchors(there), target


def anchors(page):
    """What GitHub calls the headings of a page; those that are made from the code are sections of the settings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    made = Config.model_fields if page.name == "settings.md" else ()
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(made)


def test_the_readme_s_table_lists_every_method():
    from hcfl.methods import METHODS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]+`) \|", readme, re.MULTILINE)
    names = []
    for cell in cells:
        first, *others = re.findall("`([^`]+)`", cell)
        names += [first, *(first.split("(")[0] + other for other in others)]
    assert names == list(METHODS)


def test_ten_changes_need_at_most_three_files_each_and_they_exist():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = page.partition("## To change X, open Y")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) == 11, "a head and ten changes"
    for change, files, _ in rows[1:]:
        paths = re.findall("`([^`]+)`", files)
        assert 1 <= len(paths) <= 3, change
        for path in paths:
            assert (ROOT / "src" / "hcfl" / path).is_file(), f"{change}: {path}"
