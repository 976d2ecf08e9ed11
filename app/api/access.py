"""The caller of a request, and its rights.

`Gate` finds the principal by a token, or by the headers of a trusted proxy, or refuses the request with 401. The
server's own user needs no token on its machine; a request that was forwarded came from another machine. Then each route
needs a scope: reading `read`, changing `submit`, and changing the study of another owner `operate`.

`Guard` admits browsers only from the server's own pages, under one of its own names. A browser on this machine needs no
token, and elsewhere it sends its cookie, so a foreign page could act as the user. Such a page shows in `Origin`, or in
`Host` if its name resolves to this machine (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from http.cookies import CookieError, SimpleCookie
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Annotated
from urllib.parse import urlsplit

from anyio import fail_after, to_thread
from fastapi import Depends
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Asgi

from app.api.errors import TRY_AGAIN, answer
from app.api.peers import Peer, Peers
from app.domain.terms import ANONYMOUS_ADMIN, Principal, Scope
from app.events import DatabaseUnavailable
from app.outages import LostRace
from app.service.access import Doorkeeper
from app.service.services import HttpProblem
from stagetree.client.http import AGENT_HEADER

OPEN_PATHS = ("/", "/docs", "/openapi.json", "/healthz", "/readyz")
"""Paths without study data: the page loads its data by other paths, and probes must not need a secret."""

METRICS = "/metrics"
"""In an outage of the database any token is let in here, and gets no more than `/readyz` gives to all: the alert about
the outage reads this path.
"""

METRICS_SECONDS = 1.0
"""How long a token waits here for the database; a scrape that takes long is none."""

WITHIN = "stagetree.principal"
"""The key of the caller in the scope of a request that the API makes to itself. No client can set it."""

ASSETS = "/assets/"
SCOPE_HEADER = "Stagetree-Scope"
"""The header of each answer with the caller's scope."""
FORWARDING_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "x-forwarded-user")
TOKEN_MISSING = (
    "This server asks who you are. Send a token, as `Authorization: Bearer TOKEN`, or in STAGETREE_TOKEN for commands "
    "and clients; `stagetree token create NAME` makes one where the server runs."
)
TOKEN_INVALID = "This token is not valid: it is unknown, has expired or was revoked."


@dataclass(frozen=True)
class AccessPolicy:
    """Which callers need a token: those on another machine or of another user (`loopback`), all (`always`) or none
    (`open`).
    """

    access: str = "loopback"
    proxies: Sequence[IPv4Network | IPv6Network] = ()
    """The proxies whose headers about users are trusted."""

    instead: str = ""
    """A read-only server's advice on how to change studies; "" for other servers."""

    def trusts(self, peer: Peer) -> bool:
        """Whether the peer is a trusted proxy."""
        return peer.address is not None and any(peer.address in network for network in self.proxies)

    async def needs_no_token(self, peer: Peer, headers: Headers) -> bool:
        """Whether a request needs no token."""
        if self.access != "loopback":
            return self.access == "open"
        is_forwarded = any(name in headers for name in FORWARDING_HEADERS)
        return peer.is_local and not is_forwarded and await peer.has_own_user()


class Gate:
    """Finds the principal of each request, for the routes to use, and refuses requests without one."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, doorkeeper: Doorkeeper) -> None:
        self._app, self._policy, self._doorkeeper = app, policy, doorkeeper
        self._peers = Peers()

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_open = scope["path"] in OPEN_PATHS or scope["path"].startswith(ASSETS)
        if (who := scope.get(WITHIN)) is not None:  # a request within another one, with its caller
            await self._pass_on(scope, receive, send, who)
            return
        is_metrics = scope["path"] == METRICS
        try:
            peer = self._peers.find(scope, receive)
            who = await self._find(peer, headers, METRICS_SECONDS if is_metrics else None)
        except (DatabaseUnavailable, LostRace, TimeoutError) as error:
            if not is_metrics:
                await answer(Request(scope), 503, str(error), TRY_AGAIN)(scope, receive, send)
                return
            who, is_open = None, True
        if who is None and not is_open:
            detail = TOKEN_INVALID if sent_token(headers) else TOKEN_MISSING
            refusal = answer(Request(scope), 401, detail, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        await self._pass_on(scope, receive, send, who)

    async def _pass_on(self, scope: Asgi, receive: Receive, send: Send, who: Principal | None) -> None:
        if who is not None and AGENT_HEADER in Headers(scope=scope):
            who = replace(who, is_agent=True)
        scope.setdefault("state", {}).update(principal=who, instead=self._policy.instead)
        await self._app(scope, receive, self._with_scope_header(send, who))

    def _with_scope_header(self, send: Send, who: Principal | None) -> Send:
        """Add the caller's scope to each answer, so that a page offers only allowed actions."""
        if who is None:
            return send
        may = Scope.READ if self._policy.instead else who.scope

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[SCOPE_HEADER] = str(may)
            await send(message)

        return sent

    async def _find(self, peer: Peer, headers: Headers, seconds: float | None) -> Principal | None:
        """Raises TimeoutError if the database takes more than `seconds` to recognise a token."""
        if self._policy.trusts(peer) and (user := headers.get("x-forwarded-user")):
            groups = [each.strip() for each in headers.get("x-forwarded-groups", "").split(",")]
            return self._doorkeeper.user(user, groups)
        if (token := sent_token(headers)) and (principal := await self._recognise(token, seconds)):
            return principal
        return ANONYMOUS_ADMIN if await self._policy.needs_no_token(peer, headers) else None

    async def _recognise(self, token: str, seconds: float | None) -> Principal | None:
        """Raises TimeoutError after that many `seconds`."""
        is_fresh, who = self._doorkeeper.cached_principal(token)
        if is_fresh:
            return who
        with fail_after(seconds):
            return await to_thread.run_sync(self._doorkeeper.recognise, token, abandon_on_cancel=seconds is not None)


def sent_token(headers: Headers) -> str:
    """The request's token; "" for none. The page has its token in a cookie that no script can read."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(cookie_of(headers))
    except CookieError:
        return ""
    return cookie.value if cookie else ""


def cookie_of(headers: Headers) -> str:
    """The cookie's name, which contains the port: browsers send a cookie to all ports of a machine."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"stagetree-{port}" if port.isdecimal() else "stagetree"


READING = ("preview_study", "replay_study", "imagine_study", "price_trial", "price_suggestions")
"""POST routes that change nothing: they need a body, or take long."""

OPERATING = ("release_slot",)
ADMINISTERING = ("list_tokens", "create_token", "revoke_token")
SIGNING = ("sign_in", "sign_out")


def needed_scope(route: str, method: str) -> Scope:
    """The scope that a route requires."""
    if route in ADMINISTERING:
        return Scope.ADMIN
    if route in OPERATING:
        return Scope.OPERATE
    return Scope.READ if method == "GET" or route in READING + SIGNING else Scope.SUBMIT


def principal(request: Request) -> Principal:
    """The caller, after a check of its scope.

    Raises `HttpProblem`: 403 for a scope that is too narrow, and 409 if the server is read-only.
    """
    who: Principal = request.state.principal
    scope = needed_scope(request.scope["route"].name, request.method)
    if request.state.instead and scope > Scope.READ:
        raise HttpProblem(409, f"This server only shows what there is. {request.state.instead}")
    if who.scope < scope:
        raise HttpProblem(403, f"{who.name} may {who.scope}, and this needs {scope}.")
    return who


async def require_principal(request: Request) -> Principal:
    """The caller, as a dependency."""
    return principal(request)


Who = Annotated[Principal, Depends(require_principal)]


def check_owner(request: Request, who: Principal, owner: str) -> None:
    """Refuse a change of another user's study. Raises `HttpProblem`."""
    if needed_scope(request.scope["route"].name, request.method) is Scope.SUBMIT and not who.can_change(owner):
        whose = f"belongs to {owner}" if owner else "has no known owner"
        raise HttpProblem(403, f"The study {whose}, and {who.name} may {who.scope}: this needs operate.")


SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
"""For answers without a policy of their own: no scripts and no requests; styles animate a film."""

ANY = "*"
LOCAL = "localhost"
ELSEWHERE = ("cross-site", "same-site")


class Guard:
    """Refuses requests from pages of other sites, and requests to a name that is not the server's.

    IP addresses, `localhost` and `names` are the server's; a * in `names` allows any, for a proxy that checks names.
    Some answers contain users' and trainers' text. So a browser must not guess the type of any, and runs scripts only
    in our pages, and not in a film that is opened by itself.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, {name.lower() for name in names}

    async def __call__(self, scope: Asgi, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(Headers(scope=scope))):
            status, detail = problem
            await answer(Request(scope), status, detail)(scope, receive, _with_browser_limits(send))
            return
        await self._app(scope, receive, _with_browser_limits(send))

    def _problem(self, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        name = _name(f"//{host}")
        if not (ANY in self._names or name == LOCAL or name in self._names or _is_address(name)):
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


def _with_browser_limits(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Content-Security-Policy", SANDBOX)
        await send(message)

    return sent


def _name(url: str) -> str | None:
    """The host name without its port; None if it is malformed."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_address(name: str | None) -> bool:
    """Whether the name is an IP address, which needs no DNS and so cannot be rebound."""
    try:
        return name is not None and bool(ip_address(name))
    except ValueError:
        return False
