"""Pages by cursor: what is behind a cursor stays there, whatever is written in the meantime."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

MOST = 1000
Limit = Annotated[int, Query(ge=1, le=MOST, description="the most items on the page")]
POSITION = 2**63 - 1
At = Annotated[
    int | None,
    Query(ge=1, le=POSITION, description="as it was after the event at this position, counted from the submission"),
]
Cursor = Annotated[str | None, Query(max_length=100, description="the next_cursor of the page before; opaque")]
