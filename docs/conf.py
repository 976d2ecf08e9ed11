"""How `make docs` builds these pages: Sphinx reads the Markdown, after the plots on them are drawn."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import plots  # noqa: E402

project = "stagetree"
author = "the stagetree maintainers"
html_title = "stagetree"
html_theme = "furo"
html_show_copyright = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
highlight_language = "none"
extensions = ["myst_parser"]
myst_heading_anchors = 3


def setup(app: Any) -> None:
    app.connect("builder-inited", lambda app: plots.draw(HERE / "sequences.md", HERE / "plots"))
