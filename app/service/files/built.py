"""The files of the page, which the build of the package makes from `app/page` (`hatch_build.py`)."""

from __future__ import annotations

from pathlib import Path

import app

BUILT = Path(app.__file__).parent / "page" / "dist"
NEVER_BUILT = "It was never built: `make page` does it."


def index() -> Path | None:
    """The page itself; None where it was not built."""
    found = BUILT / "index.html"
    return found if found.is_file() else None


def asset(name: str) -> Path | None:
    """A script or a style sheet of the page; None where there is no such file."""
    found = BUILT / "assets" / name
    return found if found.is_file() else None


def why_missing() -> str:
    """Why there is no page, as the build said."""
    problem = BUILT / "problem.txt"
    return problem.read_text(encoding="utf-8") if problem.is_file() else NEVER_BUILT
