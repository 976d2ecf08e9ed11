"""The page: the files that the build made, or, where it could not, what is missing."""

from __future__ import annotations

from html import escape
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, HTMLResponse, Response

from app.api.errors import Problem
from app.api.files import built

router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
FOR_EVER = "public, max-age=31536000, immutable"
"""What is called by its content never changes."""

Asset = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$")]


@router.get("/")
def page() -> Response:
    """The page, for whatever it shows: that is behind the # of its address."""
    index = built.index()
    return _missing() if index is None else FileResponse(index, headers=HEADERS)


@router.get("/assets/{name}")
def asset(name: Asset) -> Response:
    """A script or a style sheet of the page."""
    path = built.asset(name)
    if path is None:
        raise Problem(404, f"The page has no file {name}: it may be of another version, so load it again.")
    return FileResponse(path, headers=HEADERS | {"Cache-Control": FOR_EVER})


def _missing() -> Response:
    why = escape(built.why_missing())
    text = f"<h1>stagetree</h1><p>The page is missing here. {why}</p><p>The API is there: <a href='docs'>docs</a></p>"
    head = '<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>stagetree</title>'
    return HTMLResponse(f'<!doctype html><html lang="en"><head>{head}</head><body>{text}</body></html>', 503, HEADERS)
