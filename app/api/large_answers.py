"""Large answers, of which a server holds one copy while it sends them."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PART_BYTES = 256 * 1024


class LargeJson(Response):
    """JSON that is sent in parts: of the part under way, the protocol and its transport make a copy each."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body, end = memoryview(self.body), len(self.body)
        for begin in range(0, end or 1, PART_BYTES):
            part, is_last = bytes(body[begin : begin + PART_BYTES]), begin + PART_BYTES >= end
            await send({"type": "http.response.body", "body": part, "more_body": not is_last})
