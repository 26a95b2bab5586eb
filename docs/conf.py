"""The documentation site: `make docs` builds it, a warning is an error.

Sphinx with Furo: Material for MkDocs is in its last months and its successor in alpha, while these are kept, read the
code themselves, check every link, and load nothing from a network.
"""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))
import reference

project = "hcfl"
author = "the authors of hcfl"
version = release = version_of("hcfl")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["**/.ipynb_checkpoints"]

myst_heading_anchors = 3
highlight_language = "none"  # listings without a language are what a terminal shows
default_role = "code"  # docstrings mark names as Markdown does
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False

html_theme = "furo"
html_title = f"hcfl {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False


def setup(app: Sphinx) -> None:
    """Let pages have what is made from the code."""
    app.connect("source-read", lambda _, __, source: source.__setitem__(0, reference.filled_in(source[0])))
