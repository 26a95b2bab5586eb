"""The documentation site: it builds without a warning, is complete, and needs no network."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from filelock import FileLock

import hcfl
from hcfl import tiers
from hcfl.cli import COMMANDS
from hcfl.config import flat_fields

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """What a page links to, loads, and can be linked by."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.ids = [], [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a":
            self.links.append(values.get("href", "#"))
        elif tag == "link" and values.get("rel") == "stylesheet":
            self.loads.append(values["href"])
        elif "src" in values:
            self.loads.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """What `make docs` builds; a broken link, or a page that is in no list, is a warning, and a warning is an error."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # tests side by side need one site, not one each
        shared = shared.parent
    out = shared / "documentation"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs"), str(out)]
    with FileLock(shared / "documentation.lock"):
        if not (out / "objects.inv").exists():  # it is written last
            built = subprocess.run(command, capture_output=True, text=True)
            assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.glob("*.html")}


def test_every_page_is_there(site):
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= {path.stem for path in site.glob("*.html")}


def test_every_link_of_the_site_leads_somewhere(pages):
    for path, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or link == "#":
                continue
            there = (path.parent / unquote(target.path)).resolve() if target.path else path
            assert there.exists(), f"{path.name}: {link}"
            if target.fragment and there in pages:
                assert unquote(target.fragment) in pages[there].ids, f"{path.name}: {link}"


def test_nothing_is_loaded_from_a_network(site, pages):
    for path, page in pages.items():
        for source in page.loads:
            assert not urlsplit(source).netloc, f"{path.name}: {source}"
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", path.read_text(encoding="utf-8")), path.name


def test_the_files_of_the_reference_are_what_the_code_says(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import reference

    for name in reference.PAGES:
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert page == reference.written(page), f"run python docs/reference.py: {name} is out of date"


def test_the_reference_has_every_command(pages, site):
    text = (site / "commands.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2>hcfl ([a-z ]+)<", text)
    assert sorted({heading.split()[0] for heading in headings}) == sorted(COMMANDS)
    assert {"deploy init", "deploy add", "deploy rotate", "deploy revoke", "deploy list"} <= set(headings)
    for flag in ("--grid", "--front-port", "--unlabelled", "--compositions", "--rows"):
        assert flag in text


def test_the_reference_has_every_setting(site):
    text = (site / "settings.html").read_text(encoding="utf-8")
    flags = re.findall(r'<td><p><code[^>]*><span class="pre">(--[a-z0-9-]+)</span></code></p></td>', text)
    expected = [f"--{name.replace('_', '-')}" for name in flat_fields() if name != "method"]
    assert sorted(flags) == sorted(expected)


def test_the_reference_has_everything_that_is_exported(pages, site):
    ids = pages[site / "api.html"].ids
    expected = {f"hcfl.{name}" for name in hcfl.__all__} | {f"hcfl.tiers.{name}" for name in tiers.__all__}
    assert expected - ids == {"hcfl.METHODS"}, "the others are missing"
    assert "hcfl.methods.registry.METHODS" in ids
    assert {"hcfl.Run.assign", "hcfl.Federation.from_arrays", "hcfl.tiers.Distance.between"} <= ids


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")
def test_in_a_browser(site):
    """Pages fit a phone, ask for nothing, and the search finds something, straight from disk."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        for path in sorted(site.glob("*.html")):
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path.name
        page.goto(f"{(site / 'search.html').as_uri()}?q=prototypes")
        page.wait_for_selector("ul.search li a")
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
