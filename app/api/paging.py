"""Pages by cursor: what is behind a cursor stays there, whatever is written in the meantime."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from app.api.errors import Invalid

Limit = Annotated[int, Query(ge=1, le=1000, description="the most items on the page")]
Cursor = Annotated[str | None, Query(max_length=100, description="the next_cursor of the page before; opaque")]


def number(cursor: str | None) -> int:
    """The number that a cursor stands for, 0 for none. Raises `Invalid`."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 19):
        raise wrong(cursor)
    return int(cursor)


def wrong(cursor: str) -> Invalid:
    """The cursor is not one of ours."""
    return Invalid("cursor", f"must be the next_cursor of an earlier page, got {cursor!r}")
