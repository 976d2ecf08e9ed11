"""The way every command takes: decided on the plan, appended once for each idempotency key, the scheduler woken."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Annotated
from urllib.parse import quote

from fastapi import BackgroundTasks, Depends, Header, Request

from app.api.access import Who
from app.api.requests.strict import Raw
from app.api.services import Use
from app.events.log import Idempotency, StoredEvent
from app.events.records import Decide, transact
from app.events.records import Write as Transaction

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="up to 255 visible ASCII characters; the same key with the same request is done once",
    ),
]

Write = Callable[[str, Decide], list[StoredEvent]]


def writer(request: Request, background: BackgroundTasks, use: Use, raw: Raw, who: Who, key: Key = None) -> Write:
    """How this request writes to a stream. Raises what `transact` raises."""
    asked = [request.method, request.url.path, request.url.query]
    fingerprint = sha256(b"\n".join([*(part.encode() for part in asked), raw])).hexdigest()

    def write(stream: str, decide: Decide) -> list[StoredEvent]:
        whose = f"api:{quote(who.name, safe='')}"  # never a slot's, nor another's
        once = None if key is None else Idempotency(f"{whose}:{key}", fingerprint)
        transaction = Transaction(stream=stream, decide=decide, at=use.clock(), idempotency=once, by=who.name or None)
        recorded = transact(use.log, use.plans, transaction)
        background.add_task(use.wake_scheduler)
        return recorded

    return write


WriterDep = Annotated[Write, Depends(writer)]
