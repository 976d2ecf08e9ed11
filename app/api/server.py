"""The HTTP server: uvicorn with deadlines for its clients, and with a limit on their number.

uvicorn waits without end for the headers of a request, and for a client that does not read its answer. A body has its
deadline in `app.api.strict`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""How long a connection may be open without a request whose headers are complete."""

READING_SECONDS = 60.0
"""How long a client may take to read the part of an answer that waits in memory, some 64 kB."""

MOST_CONNECTIONS = 800
"""Connections at once; further requests get a 503. Processes usually may open 1,024 files."""


class Connection(H11Protocol):
    """A connection that is closed when its client keeps it waiting."""

    _request_deadline: asyncio.TimerHandle | None = None
    _reading_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading_deadline = self.loop.call_later(READING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._reading_deadline)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._request_deadline)
        _cancel(self._reading_deadline)

    def _await_request(self) -> None:
        _cancel(self._request_deadline)
        self._request_deadline = self.loop.call_later(HEADER_SECONDS, self._close_unless_busy)

    def _close_unless_busy(self) -> None:
        """Close the connection, unless a request is being answered: its end sets the next deadline."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
            self._request_deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


OPTIONS: dict[str, Any] = {"http": Connection, "limit_concurrency": MOST_CONNECTIONS, "proxy_headers": False}
"""The options with which uvicorn runs the application."""


def serve(host: str, port: int, *, access_log: bool = True) -> None:
    """Run the API until this process gets a signal to end. The settings come from the environment."""
    uvicorn.run("app.main:create_app", factory=True, host=host, port=port, access_log=access_log, **OPTIONS)
