"""Tokens: creation, storage and recognition; and the users of a trusted proxy."""

from __future__ import annotations

import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from threading import Lock

from app.domain.terms import ANONYMOUS_ADMIN, Principal, Scope
from app.events import Records, TokenRecord

DAY = 86_400.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
PREFIX = "stagetree_"
"""Lets scanners recognise a leaked token, for example in a repository."""

OPERATOR = "up"
"""The token name of the user who starts a server for other machines."""

KNOWN_SECONDS = 5.0
"""How long a looked-up token is cached. A revoked token works that much longer."""

SHOWN_SECONDS = 60.0
"""The resolution of a token's recorded last use."""

MOST_KNOWN = 1000


class TokenRefused(ValueError):
    """A token cannot be made or revoked; the message gives the reason."""


def digest_of(token: str) -> str:
    """The SHA-256 of a token, in hexadecimal. A token of 32 random bytes needs no slower hash."""
    return sha256(token.encode()).hexdigest()


def create(
    records: Records,
    name: str,
    scope: Scope,
    project: str | None,
    days: float | None,
    now: float,
    *,
    max_slot_seconds: float | None = None,
    instead: bool = False,
) -> str:
    """Make a token and return it. Only its digest is stored.

    project: None for all. days: until it expires; None for never. max_slot_seconds: that all its studies may take; None
    for no limit, and for the scope admin. instead: replace an earlier token of this name.
    Raises `TokenRefused`.
    """
    if not NAME.fullmatch(name):
        raise TokenRefused(f"NAME must be letters, digits and . _ @ -, at most 64, got {name!r}")
    if scope == Scope.ADMIN and max_slot_seconds is not None:
        raise TokenRefused("an admin makes tokens without a budget, so its own would bound nothing: take another scope")
    token = PREFIX + secrets.token_urlsafe(32)
    row = TokenRecord(
        name=name,
        digest=digest_of(token),
        scope=str(scope),
        created_at=now,
        project=project,
        expires_at=None if days is None else now + days * DAY,
        max_slot_seconds=max_slot_seconds,
    )
    with records.write() as rows:
        if rows.tokens.find(name) is not None and not instead:
            raise TokenRefused(f"there is, or was, a token {name}: take another name, for it is in the log")
        rows.tokens.put(row)
    return token


def revoke(records: Records, name: str, now: float, who: Principal = ANONYMOUS_ADMIN) -> None:
    """Revoke a token; caches end a few seconds later. Raises `TokenRefused` if there is none."""
    with records.write() as rows:
        row = rows.tokens.find(name)
        if row is None or not who.can_see_all_of(row.project):
            raise TokenRefused(f"there is no token {name}")
        if row.revoked_at is None:
            rows.tokens.mark(row.digest, revoked_at=now)


def load_or_create_token(file: Path, records: Records, now: float) -> str:
    """The server user's token of the widest scope, stored in a file with mode 0600.

    It stays the same across restarts until it is revoked.
    """
    with suppress(OSError):
        token = file.read_text(encoding="utf-8").strip()
        with records.read() as rows:
            row = rows.tokens.find_digest(digest_of(token))
        if row is not None and is_valid(row, now):
            return token
    token = create(records, OPERATOR, Scope.ADMIN, None, None, now, instead=True)
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as written:
        written.write(token + "\n")
    return token


def is_valid(row: TokenRecord, now: float) -> bool:
    """Whether the token is neither expired nor revoked."""
    return row.revoked_at is None and (row.expires_at is None or now < row.expires_at)


@dataclass
class Doorkeeper:
    """Finds principals by their tokens. Safe to share between threads.

    groups: the rights of a proxy's users by group; `*` for every user.
    """

    records: Records
    clock: Callable[[], float]
    groups: Mapping[str, Principal] = field(default_factory=dict)
    _known: OrderedDict[str, tuple[float, TokenRecord | None]] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def cached_principal(self, token: str) -> tuple[bool, Principal | None]:
        """Whether the token is cached, and its principal. Does not read the database."""
        with self._lock:
            until, row = self._known.get(digest_of(token), (0.0, None))
        return self.clock() < until, self._principal(row)

    def recognise(self, token: str) -> Principal | None:
        """The principal of a token; None if it is unknown, expired or revoked. Raises `DatabaseUnavailable`."""
        now, digest = self.clock(), digest_of(token)
        with self.records.read() as rows:
            row = rows.tokens.find_digest(digest)
        if row is not None and not compare_digest(row.digest, digest):
            row = None
        if row is not None and is_valid(row, now) and now - (row.used_at or 0.0) > SHOWN_SECONDS:
            with self.records.write() as used:
                used.tokens.mark(row.digest, used_at=now)
        with self._lock:
            self._known[digest] = now + KNOWN_SECONDS, row
            self._known.move_to_end(digest)
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return self._principal(row)

    def user(self, name: str, groups: Iterable[str]) -> Principal | None:
        """A proxy's user with the widest scope of their groups; None if no group has any."""
        principals = [self.groups[group] for group in (*groups, "*") if group in self.groups]
        best = max(principals, key=lambda each: each.scope, default=None)
        return None if best is None else replace(best, name=name)

    def _principal(self, row: TokenRecord | None) -> Principal | None:
        if row is None or not is_valid(row, self.clock()):
            return None
        return Principal(row.name, Scope.parse(row.scope), row.project, row.max_slot_seconds)
