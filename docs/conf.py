"""How `make docs` builds these pages: Sphinx reads the Markdown, after the plots on them are drawn.

The site has the guide for language models, too: `llms.txt` and `llms-full.txt`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import plots  # noqa: E402

from tools import llms  # noqa: E402

project = "stagetree"
author = "the stagetree maintainers"
release = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]
html_title = f"stagetree {release}"
html_theme = "furo"
html_show_copyright = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
highlight_language = "none"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
myst_heading_anchors = 3
myst_enable_extensions = ["substitution"]
myst_substitutions = {"version": release}
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"


def as_rst(app: Any, what: str, name: str, object: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are prose with code in single backticks, and with indented programs after a blank line."""
    for number, line in enumerate(lines):
        lines[number] = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line)
        if _begins_program(lines, number):
            lines[number] = lines[number].removesuffix(":") + "::"


def _begins_program(lines: list[str], number: int) -> bool:
    after = lines[number + 1 : number + 3]
    is_prose = bool(lines[number].strip()) and not lines[number].startswith((" ", ".."))
    return is_prose and len(after) == 2 and not after[0].strip() and after[1].startswith("    ")


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", as_rst, priority=400)  # before napoleon
    app.connect("builder-inited", lambda app: plots.draw(HERE / "sequences.md", HERE / "plots"))
    app.connect("build-finished", lambda app, error: llms.write(Path(app.outdir)))
