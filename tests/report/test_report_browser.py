"""The report in a browser, from disk and without a network: every figure is drawn, every number is the folder's."""

import json
import shutil
from contextlib import contextmanager
from urllib.parse import quote

import numpy as np
import pytest

import hcfl
from hcfl.data import Federation
from hcfl.report import page
from helpers import blobs

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt-get install chromium)")

FIGURES = {"accuracy", "clusters", "quality", "lineage", "weights", "classes", "splits", "traffic", "time"}
EVIL_CLIENT, EVIL_CLASS = "<img src=x onerror=alert(1)>", "</script><script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Splits, merges, one cluster; and a user's own data, without a test set and without a truth."""
    folder = tmp_path_factory.mktemp("runs")
    x, y = blobs()
    planted = Federation.from_arrays(x, y, clients=12, partition="iid", beta=0.9, concepts=3, seed=1)
    for method in ("hcfl+(fedrc)", "stocfl", "fedavg"):
        hcfl.run(method, planted, rounds=5, out=folder / method)
    names = np.array([EVIL_CLASS, "b & b", '"c"', "d"])[y]
    clients = np.array([EVIL_CLIENT, "${x}", "dan's", "北"])[np.arange(len(y)) % 4]
    hcfl.run("hcfl+(fedem)", Federation.from_arrays(x, names, client=clients), rounds=2, out=folder / "own")
    return folder


@contextmanager
def opened(browser, path, width=1440, theme="light"):
    """Open a page offline; no request may leave the page, and no script may fail."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, offline=True)
    shown, wrong, asked = context.new_page(), [], []
    shown.on("console", lambda message: wrong.append(message.text))
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.on("dialog", lambda dialog: wrong.append(dialog.message))
    shown.on("request", lambda request: asked.append(request.url))
    shown.goto(f"file://{quote(str(path))}")
    shown.wait_for_selector("html[data-ready]")
    yield shown
    context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def figures(shown):
    """Return, for each figure, how many marks it has; None for one that says that it has nothing to show."""
    return shown.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll("[data-figure]")].map((figure) => [
          figure.dataset.figure,
          "missing" in figure.dataset ? null : figure.querySelectorAll("path.line, g rect, image, circle").length,
        ]))"""
    )


def check_summary(shown, summaries):
    """Every number of every summary is in the page, exactly, and as people read it."""
    found = shown.evaluate(
        """() => [...document.querySelectorAll("data")].map((one) => [
          one.dataset.run, one.dataset.key, one.value, one.textContent,
        ])"""
    )
    seen = set()
    for run, key, value, text in found:
        wanted = summaries[int(run)][key]
        seen.add((int(run), key))
        if wanted is None:
            assert (value, text) == ("", "–")
        elif isinstance(wanted, bool):
            assert (value, text) == (("true", "yes") if wanted else ("false", "no"))
        elif isinstance(wanted, float):
            assert float(value) == wanted
            if text.endswith("%"):
                assert float(text[:-1]) == pytest.approx(100 * wanted, abs=0.0501)
        else:
            assert value == str(wanted)
    assert seen == {(run, key) for run, summary in enumerate(summaries) for key in summary if key != "warnings"}


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
@pytest.mark.parametrize("method", ["hcfl+(fedrc)", "stocfl", "fedavg"])
def test_every_figure_is_drawn_and_every_number_is_the_folder_s(browser, runs, tmp_path, method, width, theme):
    out = page.write([runs / method], tmp_path / "report.html")
    with opened(browser, out, width, theme) as shown:
        drawn = figures(shown)
        assert drawn.keys() >= FIGURES
        empty = {name for name, marks in drawn.items() if marks is None}
        assert empty == (set() if method == "hcfl+(fedrc)" else {"splits"})
        assert all(marks > 0 for marks in drawn.values() if marks is not None), drawn
        check_summary(shown, [json.loads((runs / method / "summary.json").read_text())])
        assert shown.evaluate("document.documentElement.scrollWidth") == width
        sizes = shown.evaluate(
            "() => [...document.querySelectorAll('svg text')].map((one) => one.getBoundingClientRect().height)"
        )
        assert min(sizes) > 10


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_steps_of_time_are_on_the_axis_and_moves_are_told(browser, tmp_path, width, theme):
    x, y = blobs()
    federation = Federation.from_arrays(
        x, y, clients=6, partition="iid", beta=1.0, concepts=2, steps=3, drift="sudden", seed=1
    )
    run = hcfl.run("ifca", federation, clusters=2, rounds_per_step=2, out=tmp_path / "run")
    with opened(browser, run.report(), width, theme) as shown:
        drawn = figures(shown)
        assert drawn["timeline"] > 0
        for name in ("lineage", "timeline"):
            words = shown.locator(f"[data-figure={name}] svg text").all_text_contents()
            assert any(word.startswith("step") for word in words), words
        said = {
            key: shown.locator(f"[data-table=time] data[data-key={key}]").get_attribute("value")
            for key in ("prequential_mean", "delay_mean", "false_moves", "ari_mean")
        }
        known = {key: run.summary[key] for key in said}
        assert said == {key: "" if value is None else said[key] for key, value in known.items()}
        assert all(float(said[key]) == value for key, value in known.items() if value is not None)
        marks = shown.locator("[data-figure=timeline] svg line.turn").count()
        assert marks == run.summary["concept_changes"] == 3
        assert shown.locator("[data-table=turns] tr").count() > 1
        shown.locator("[data-figure=timeline] svg").hover(position={"x": 200, "y": 40})
        assert shown.locator("#tip").inner_text().startswith("Client 1, round")
        assert shown.evaluate("document.documentElement.scrollWidth") == width


def test_several_runs_are_compared_and_each_can_be_chosen(browser, runs, tmp_path):
    methods = ["hcfl+(fedrc)", "stocfl", "fedavg"]
    out = page.write([runs / method for method in methods], tmp_path / "report.html")
    with opened(browser, out) as shown:
        shown.locator("#one-run > summary").click()
        shown.wait_for_selector("[data-figure=weights] image")
        assert figures(shown).keys() >= FIGURES | {"frontier"}
        check_summary(shown, [json.loads((runs / method / "summary.json").read_text()) for method in methods])
        assert shown.locator("[data-figure=frontier] circle").count() == 3
        assert shown.locator("[data-figure=split] image").count() > 0
        shown.select_option("#run", label="fedavg")
        assert shown.locator("[data-figure=split] image").count() == 0
        assert "name: fedavg" in shown.locator("#configuration pre").text_content()


def test_figures_can_be_hovered_and_zoomed(browser, runs, tmp_path):
    out = page.write([runs / "hcfl+(fedrc)"], tmp_path / "report.html")
    with opened(browser, out) as shown:
        chart = shown.locator("[data-figure=accuracy] svg")
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        middle = box["y"] + box["height"] / 2
        shown.mouse.move(box["x"] + box["width"] * 0.98, middle)
        last = json.loads((runs / "hcfl+(fedrc)" / "summary.json").read_text())["test_last"]
        tip = shown.locator("#tip").text_content()
        assert tip.startswith("Round 5")
        assert f"{100 * last:.1f}%" in tip

        reset = shown.locator("[data-figure=accuracy] .reset")
        before = chart.locator("path.line").first.get_attribute("d")
        assert reset.is_hidden()
        shown.mouse.move(box["x"] + box["width"] * 0.4, middle)
        shown.mouse.down()
        shown.mouse.move(box["x"] + box["width"] * 0.7, middle + 2, steps=4)
        shown.mouse.up()
        assert reset.is_visible()
        assert chart.locator("path.line").first.get_attribute("d") != before
        shown.mouse.dblclick(box["x"] + box["width"] * 0.5, middle)
        assert reset.is_hidden()
        assert chart.locator("path.line").first.get_attribute("d") == before
        chart.focus()
        shown.keyboard.press("+")
        assert reset.is_visible()
        shown.keyboard.press("0")
        assert reset.is_hidden()

        weights = shown.locator("[data-figure=weights] svg")
        weights.scroll_into_view_if_needed()
        box = weights.bounding_box()
        shown.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert "weight on cluster" in shown.locator("#tip").text_content()


def test_the_button_turns_the_page_dark_and_paper_is_light(browser, runs, tmp_path):
    out = page.write([runs / "hcfl+(fedrc)"], tmp_path / "report.html")
    with opened(browser, out) as shown:
        background = "getComputedStyle(document.body).backgroundColor"
        image = shown.locator("[data-figure=weights] image")
        light, light_image = shown.evaluate(background), image.get_attribute("href")
        shown.get_by_label("Switch between light and dark").click()
        assert shown.evaluate(background) != light
        assert image.get_attribute("href") != light_image
        shown.emulate_media(media="print")
        assert shown.evaluate(background) == "rgb(255, 255, 255)"


def test_names_are_names_and_what_is_not_known_is_said(browser, runs, tmp_path):
    out = page.write([runs / "own"], tmp_path / "report.html")
    with opened(browser, out) as shown:
        assert shown.title() == "hcfl: hcfl+(fedem)"
        assert shown.locator("img").count() == 0
        assert shown.locator("script").count() == 2
        assert EVIL_CLIENT[:15] in shown.locator("[data-figure=weights]").text_content()
        assert EVIL_CLASS[:15] in shown.locator("[data-figure=classes]").text_content()
        assert "there is no test set" in shown.locator("#summary").text_content()
        assert "truth not known" in shown.locator("#summary").text_content()
        assert shown.locator("[data-figure=quality]").count() == 0
        check_summary(shown, [json.loads((runs / "own" / "summary.json").read_text())])


def test_a_folder_with_little_in_it_shows_that(browser, runs, tmp_path):
    shutil.copytree(runs / "hcfl+(fedrc)", tmp_path / "run")
    for name in ("summary.json", "clients.csv", "classes.csv", "splits.jsonl"):
        (tmp_path / "run" / name).unlink()
    whole = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "metrics.jsonl").write_text(whole[0])
    with opened(browser, page.write([tmp_path / "run"])) as shown:
        drawn = figures(shown)
        assert {name for name, marks in drawn.items() if marks is None} == {"weights", "classes", "splits", "confusion"}
        assert all(marks > 0 for marks in drawn.values() if marks is not None), drawn
        assert "stopped after 1 of 5 rounds" in shown.locator("header").text_content()


def test_seeds_of_a_method_are_one_line_with_a_band_and_tables_open_by_keyboard(browser, runs, tmp_path):
    folders = []
    for seed in (0, 1):
        for method in ("fedavg", "hcfl+(fedrc)"):
            folder = tmp_path / f"{method}-{seed}"
            shutil.copytree(runs / method, folder)
            config = (folder / "config.yaml").read_text(encoding="utf-8")
            (folder / "config.yaml").write_text(config.replace("\nseed: 0", f"\nseed: {seed}"), encoding="utf-8")
            folders.append(folder)
    out = page.write(folders, tmp_path / "report.html")
    with opened(browser, out, width=390) as shown:
        assert shown.locator("[data-table=groups] tr").count() == 3
        assert shown.locator("[data-figure=accuracy] path.band").count() == 4
        assert "In Val, hcfl+(fedrc) is ahead of fedavg by " in shown.locator("#summary .note").text_content()
        assert shown.locator("#one-run").get_attribute("open") is None
        table = shown.locator("#rounds .numbers").first
        table.locator("summary").focus()
        shown.keyboard.press("Enter")
        table.locator("table").wait_for()
        assert table.locator("tr").count() == 1 + 5
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        assert shown.evaluate("document.documentElement.scrollHeight") < 4000
