"""The notebooks in docs run from the first cell to the last, in a real kernel, and show what they promise."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs").glob("*.ipynb"))


@pytest.mark.filterwarnings("ignore")  # of the kernel's client
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in shown for kind in output.get("data", ())}
    assert "image/png" in kinds, "pictures show themselves"
    pages = [output["data"]["text/html"] for output in shown if "text/html" in output.get("data", ())]
    assert any("<progress value='10' max='10'>" in page for page in pages), "the progress came to its end"
    assert any("<iframe" in page and "clusters_last" in page for page in pages), "the figure keeps its data"
    assert any("<table" in page for page in pages), "metrics are a table"
