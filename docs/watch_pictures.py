"""The pictures of docs/watch.md, from real runs that are under way in Chromium.

python docs/watch_pictures.py
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "images"
HCFL = (sys.executable, "-m", "hcfl.cli")
ROUNDS, SEEN = 60, 14
"""Rounds of the run that is shown, and after how many the pictures are taken."""


def main() -> None:
    """Play three runs, one of which is under way, and take the pictures."""
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        os.chdir(folder)
        for method, more in (("fedavg", ()), ("ifca", ("--clusters", "3"))):
            _start("run", method, "--rounds", "20", *more, "--out", f"runs/{method}").wait()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        playing = _start("run", "hcfl+(fedrc)", "--rounds", str(ROUNDS), "--epochs", "3", "--out", "runs/hospitals")
        serving = _start("watch", "runs", "--port", str(port))
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            while not _rounds() >= SEEN:
                time.sleep(0.2)
            address = f"http://127.0.0.1:{port}"
            _take(browser, f"{address}/", "watch-list", 1280, 360, "light")
            _take(browser, f"{address}/run/runs/hospitals", "watch-run", 1280, 1720, "light")
            small = [
                _take(browser, f"{address}{path}", "watch-small", 400, 1100, "dark")
                for path in ("/", "/run/runs/hospitals")
            ]
            _side_by_side(small, IMAGES / "watch-small.png")
        finally:
            for process in (serving, playing):
                process.terminate()
                process.wait()
            browser.close()


def _start(*words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*HCFL, *words], stdout=subprocess.DEVNULL)


def _rounds() -> int:
    log = Path("runs/hospitals/metrics.jsonl")
    return len(log.read_text().splitlines()) if log.exists() else 0


def _take(browser: Browser, address: str, name: str, width: int, height: int, theme: str) -> Image.Image:
    """Take a picture of a page and keep it as `name`; return it."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    time.sleep(1.5)
    page.screenshot(path=IMAGES / f"{name}.png")
    context.close()
    with Image.open(IMAGES / f"{name}.png") as picture:
        return picture.convert("RGB")


def _side_by_side(pictures: list[Image.Image], path: Path) -> None:
    gap, width, height = 24, sum(one.width for one in pictures), max(one.height for one in pictures)
    sheet = Image.new("RGB", (width + gap * (len(pictures) - 1), height), "white")
    at = 0
    for one in pictures:
        sheet.paste(one, (at, 0))
        at += one.width + gap
    sheet.save(path)


if __name__ == "__main__":
    main()
