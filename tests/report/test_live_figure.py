"""The figure in a notebook: it is changed in place, and keeps its data in a notebook that was saved."""

import re
import shutil
from html import unescape

import pytest

import hcfl
from hcfl.data import Federation
from hcfl.report import live_figure
from helpers import blobs

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    x, y = blobs()
    planted = Federation.from_arrays(x, y, clients=12, partition="iid", beta=0.9, concepts=3, seed=1)
    return hcfl.run("hcfl+(fedrc)", planted, rounds=4, out=tmp_path_factory.mktemp("runs") / "</iframe><b>")


def test_a_run_shows_itself(run, tmp_path):
    (source,) = re.findall('srcdoc="(.*)"', run._repr_html_(), re.DOTALL)
    assert "<" not in source
    assert '"clusters_last":' in unescape(source)
    assert live_figure.data_of(tmp_path) is None
    assert hcfl.load(run.path)._repr_html_() is not None


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")
def test_the_figure_is_changed_in_place(run, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    lines = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    copy = shutil.copytree(run.path, tmp_path / "run")
    (copy / "metrics.jsonl").write_text("".join(lines[:2]))
    two, four = live_figure.data_of(copy), live_figure.data_of(run.path)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, wrong = browser.new_page(viewport={"width": 1000, "height": 700}), []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.set_content("<body style='background:#111'><div id=output></div><div id=line></div></body>")
        fresh = "document.createRange().createContextualFragment(html)"  # with its scripts, as notebooks have it
        put = f"([where, html]) => document.getElementById(where).replaceChildren({fresh})"
        page.evaluate(put, ["output", live_figure.frame("figure", None)])
        figure = page.frame_locator("#figure")
        assert "first round" in figure.locator("#page").text_content()
        for data, rounds in ((two, 2), (four, 4)):
            page.evaluate(put, ["line", live_figure.message("figure", data)])
            figure.locator(f"html[data-round='{rounds}']").wait_for()
            assert figure.locator("[data-figure=accuracy] path.line").count() == 2
        assert figure.locator("html").get_attribute("data-theme") == "dark"
        assert figure.locator("[data-figure=lineage] rect").count() > 2
        page.evaluate(put, ["output", run._repr_html_()])
        page.frame_locator("iframe").locator("html[data-round='4']").wait_for()
        browser.close()
    assert wrong == []
