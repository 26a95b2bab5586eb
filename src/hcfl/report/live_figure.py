"""The report's figures in a notebook, under the cell of a run: drawn once, then changed in place as rounds end."""

from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from hcfl.core.record import Row
from hcfl.errors import InputError
from hcfl.report.page.reading import as_data, read, trimmed
from hcfl.report.page.write_page import FIGURES, embedded

HEIGHT = 500
"""Of the figure, in pixels."""

STYLE = """
body { background: transparent; }
#page > * { padding: 2px; max-width: none; }
"""

NOT_DRAWN = ("config", "splits", "classes", "clients")
"""What the figure does not need."""

SEND = """<script>
(() => {
  const figure = document.getElementById("$id");
  if (!figure) return;
  const paint = getComputedStyle(document.body).backgroundColor;
  const [red, green, blue, seen] = (paint.match(/[\\d.]+/g) || []).map(Number);
  const dark = seen === 0 ? false : 0.3 * red + 0.6 * green + 0.1 * blue < 100;
  const send = () => figure.contentWindow.postMessage({ hcfl: $data, dark }, "*");
  figure.addEventListener("load", send, { once: true });
  send();
})();
</script>"""


def data_of(path: Path, ended: bool = False) -> Row | None:
    """Return what the figure shows of a run folder; None where there is nothing yet."""
    try:
        folder = read(path)
        shown = as_data(folder if ended else trimmed(folder), str(folder.summary["method"]), 0)
    except InputError:
        return None
    kept = NOT_DRAWN[:-1] if ended else NOT_DRAWN
    return {**shown, **dict.fromkeys(kept)}


def frame(name: str, run: Row | None) -> str:
    """Return the figure as an element of its own; without a run, it waits for the data of `message`."""
    resources = files("hcfl.report.page")
    scripts = [(resources / "js" / f"{script}.js").read_text(encoding="utf-8") for script in (*FIGURES, "notebook")]
    page = Template((resources / "page.html").read_text(encoding="utf-8")).substitute(
        title="hcfl",
        style=(resources / "page.css").read_text(encoding="utf-8") + STYLE,
        script="".join(scripts),
        data=embedded(run),
    )
    look = f"width:100%;height:{HEIGHT}px;border:0"
    source = escape(page, quote=True)
    return f'<iframe id="{name}" title="The run" sandbox="allow-scripts" style="{look}" srcdoc="{source}"></iframe>'


def message(name: str, run: Row) -> str:
    """Return a script that gives the figure of this name new data."""
    return Template(SEND).substitute(id=name, data=embedded(run))
