"""Answers that a client may keep as long as they are true: it asks each time, and is told so with a 304."""

from __future__ import annotations

from typing import Any

from fastapi import Request


def tag_of(moment: Any) -> str:
    """The `ETag` of what is true as of a moment: weak, since it says nothing of how the answer is written."""
    return f'W/"{moment}"'


def headers(tag: str) -> dict[str, str]:
    """What an answer says of itself."""
    return {"ETag": tag, "Cache-Control": "no-cache"}


def is_had_by(request: Request, tag: str) -> bool:
    """Whether whoever asks has that answer already."""
    return tag in request.headers.get("if-none-match", "")
