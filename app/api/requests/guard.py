"""Who may have a browser talk to this server: only pages of its own, under a name that is its own.

A browser on this machine needs no token, and elsewhere its cookie goes along, so a web page must not be taken for its
user. A page elsewhere may send requests that carry its `Origin`, or have its own name point at this machine, which
`Host` shows (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import answer

ANY = "*"
LOCAL = "localhost"
ELSEWHERE = ("cross-site", "same-site")


class Guard:
    """Refuses requests to another name than an address, `localhost` or one of `names`, and those of other sites' pages.

    `names` with a * in it: any name will do, since something in front of the server looks at it. Every answer tells the
    browser not to guess its type: what trainers print and users write is in some.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(Headers(scope=scope))):
            status, detail = problem
            await answer(Request(scope), status, detail)(scope, receive, _typed(send))
            return
        await self._app(scope, receive, _typed(send))

    def _problem(self, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._is_ours(_name(f"//{host}")):
            return 421, f"This server is not known as {host!r}: STAGETREE_HOSTS lists the names that it answers to."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, f"Pages of {origin!r} may not use this server."
        if (
            origin is None
            and headers.get("sec-fetch-site") in ELSEWHERE
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            return 403, "Pages of other sites may not use this server."
        return None

    def _is_ours(self, name: str | None) -> bool:
        return ANY in self._names or name == LOCAL or name in self._names or _is_address(name)


def _typed(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("X-Content-Type-Options", "nosniff")
        await send(message)

    return sent


def _name(url: str) -> str | None:
    """The host's name without its port; None where it cannot be read."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_address(name: str | None) -> bool:
    """Whether the name is an address: whoever sends it looked nothing up, so nobody can have lied to them."""
    try:
        return name is not None and bool(ip_address(name))
    except ValueError:
        return False
