"""The live page in a browser: a run from its first to its last round, killed and resumed in between."""

import json
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from watched import served

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")

FIGURES = {"accuracy", "clusters", "quality", "lineage", "weights", "classes", "splits", "traffic", "time"}

PLAY = """
import sys, time
from pathlib import Path
import hcfl
from hcfl.launch import resume

out, gates = Path(sys.argv[1]), Path(sys.argv[2])

def wait(record):
    while not (gates / str(record.round)).exists():
        time.sleep(0.02)

if out.exists():
    resume(out, wait)
else:
    hcfl.run("hcfl+(fedrc)", rounds=8, clients=12, lr=0.1, checkpoint_every=1, out=out, on_round=wait)
"""
"""A run whose rounds end when a file appears."""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def opened(browser, address, width=1440, theme="light"):
    """Open a page of the server; nothing may be asked of any other, and no script may fail."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    shown, wrong, asked = context.new_page(), [], []
    shown.on("console", lambda message: wrong.append(message.text))
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.on("dialog", lambda dialog: wrong.append(dialog.message))
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(address)
    shown.wait_for_selector("html[data-ready]")
    yield shown
    context.close()
    assert wrong == []
    server = re.match(r"http://[^/]+", address)[0]
    assert [url for url in asked if not url.startswith((server, "data:"))] == []


def wait_for_round(shown, number):
    shown.wait_for_selector(f"html[data-round='{number}']", timeout=20_000)


def clusters_of(folder):
    return [json.loads(line)["clusters"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_is_watched_from_its_first_to_its_last_round(browser, tmp_path):
    out, gates = tmp_path / "runs" / "one", tmp_path / "gates"
    (tmp_path / "runs").mkdir()
    gates.mkdir()

    def start():
        return subprocess.Popen([sys.executable, "-c", PLAY, str(out), str(gates)])

    playing = start()
    try:
        with served([tmp_path / "runs"]) as address, opened(browser, address) as shown:
            shown.wait_for_selector("tr[data-run='runs/one']", timeout=60_000)  # it appears by itself
            shown.click("text=runs/one")
            wait_for_round(shown, 1)
            shown.evaluate("window.neverReloaded = true")
            assert shown.locator("[data-figure=clusters] .mark").count() == 0
            assert shown.locator(".chip.state.running").count() == 1
            round_ = 1
            while max(clusters_of(out)) == 1:
                (gates / str(round_)).touch()
                round_ += 1
                wait_for_round(shown, round_)
            assert round_ < 7, "the clusters never split"
            shown.wait_for_selector("[data-change=split]")  # the split, with its reason
            assert "≥ ρ = 0.3" in shown.locator("[data-change=split]").text_content()
            assert shown.locator("[data-figure=split] image").count() == 1
            assert shown.locator("[data-figure=clusters] .mark").count() == 1

            playing.send_signal(signal.SIGKILL)
            playing.wait()
            shown.wait_for_selector(".chip.state.killed")
            assert shown.locator(".command code").first.text_content() == f"hcfl resume {out}"
            playing = start()
            shown.wait_for_selector(".chip.state.running", timeout=60_000)

            # A figure that the reader has zoomed stays as it is until the zoom is reset.
            chart = shown.locator("[data-figure=accuracy] svg")
            chart.focus()
            shown.keyboard.press("+")
            assert shown.locator("[data-figure=accuracy] .reset").is_visible()
            before = chart.locator("path.line").first.get_attribute("d")
            for number in range(1, 8):
                (gates / str(number)).touch()
            wait_for_round(shown, 8)
            assert shown.locator("[data-figure=accuracy] path.line").first.get_attribute("d") == before
            (gates / "8").touch()
            shown.wait_for_selector(".chip.state.finished", timeout=20_000)
            shown.locator("[data-figure=accuracy] .reset").click()
            marks = shown.locator("[data-figure=accuracy] g > circle")  # 8 rounds of Val and of Test
            marks.nth(15).wait_for(state="attached")
            drawn = shown.evaluate("[...document.querySelectorAll('[data-figure]')].map((one) => one.dataset.figure)")
            assert set(drawn) >= FIGURES
            assert shown.locator("[data-missing]").count() == 0
            last = json.loads((out / "summary.json").read_text())
            assert float(shown.locator("#summary data[data-key=val_last]").get_attribute("value")) == last["val_last"]
            assert shown.evaluate("window.neverReloaded") is True
            check_small_and_dark(browser, address)
    finally:
        playing.kill()
        playing.wait()


def check_small_and_dark(browser, address):
    """Every page fits on a small screen; several runs are shown side by side."""
    for path in ("/", "/run/runs/one", "/compare?run=runs/one&run=runs/none"):
        with opened(browser, address + path, width=400, theme="dark") as shown:
            assert shown.evaluate("document.documentElement.scrollWidth") == 400
            assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
            sizes = shown.evaluate(
                "() => [...document.querySelectorAll('svg text')].map((one) => one.getBoundingClientRect().height)"
            )
            assert min(sizes, default=11) > 10
    with opened(browser, f"{address}/run/runs/none") as shown:
        assert shown.locator("h1").text_content() == "There is no such run"


def test_names_are_only_text_and_the_keyboard_reaches_everything(browser, tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    run = tmp_path / "runs" / evil
    run.mkdir(parents=True)
    config = {"method": {"name": evil}, "data": {"source": "</script><script>alert(2)</script>"}}
    (run / "config.yaml").write_text(json.dumps({**config, "training": {"rounds": 3}}))
    (run / "metrics.jsonl").write_text("")
    with served([tmp_path / "runs"]) as address, opened(browser, address) as shown:
        assert evil in shown.locator("tbody").text_content()
        assert shown.locator("img").count() == 0
        for wanted in ("BUTTON", "INPUT", "SELECT", "INPUT", "A"):
            shown.keyboard.press("Tab")
            assert shown.evaluate("document.activeElement.tagName") == wanted
        shown.keyboard.press("Enter")
        shown.wait_for_selector("a.back")
        shown.wait_for_selector("html[data-ready]")
        assert evil in shown.locator("h1").text_content()
        assert shown.locator("img").count() == 0
