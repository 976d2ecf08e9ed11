"""Answers about a whole study, kept as long as nothing happens: many pages that look at it cost as much as one.

Each is JSON, compressed once, and has the moment it is true of as its `ETag`: a client asks each time whether its copy
is still true, and is told so with a 304.
"""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic_core import to_json


def tag_of(moment: Any) -> str:
    """The `ETag` of what is true as of a moment: weak, since it says nothing of how the answer is written."""
    return f'W/"{moment}"'


def caching_headers(tag: str) -> dict[str, str]:
    """What an answer says of itself."""
    return {"ETag": tag, "Cache-Control": "no-cache"}


def is_had_by(request: Request, tag: str) -> bool:
    """Whether whoever asks has that answer already."""
    return tag in request.headers.get("if-none-match", "")


MOST_BYTES = 64 * 2**20
LEVEL = 5

Key = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PackedAnswer:
    """JSON, compressed, and what it is called."""

    tag: str
    packed: bytes

    def to(self, request: Request) -> Response:
        """What is sent: nothing but the name where whoever asks has it already."""
        headers = {**caching_headers(self.tag), "Vary": "Accept-Encoding"}
        if is_had_by(request, self.tag):
            return Response(status_code=304, headers=headers)
        if self.is_to_be_unpacked(request):
            return Response(gzip.decompress(self.packed), media_type="application/json", headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(self.packed, media_type="application/json", headers=headers)

    def is_to_be_unpacked(self, request: Request) -> bool:
        """Whether whoever asks cannot read it as it is, which is some work."""
        is_had = is_had_by(request, self.tag)
        return not (is_had or "gzip" in request.headers.get("accept-encoding", ""))


class Answers:
    """Those that were asked for last, up to `most` bytes. Safe to share between threads."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[Key, PackedAnswer] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Key, moment: Any) -> PackedAnswer | None:
        """The answer that is known under a key, if it is of this moment."""
        with self._lock:
            found = self._kept.get(key)
            if found is None or found.tag != tag_of(moment):
                return None
            self._kept.move_to_end(key)
            return found

    def get(self, key: Key, moment: Any, make: Callable[[], Any]) -> PackedAnswer:
        """The answer that is known under a key, if it is of this moment; or else as it is made now."""
        if (found := self.find(key, moment)) is not None:
            return found
        made = PackedAnswer(tag_of(moment), gzip.compress(to_json(make(), inf_nan_mode="null"), LEVEL))
        with self._lock:
            self._keep(key, made)
        return made

    def _keep(self, key: Key, made: PackedAnswer) -> None:
        self._drop(key)
        self._kept[key] = made
        self._bytes += len(made.packed)
        while self._bytes > self._most and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: Key) -> None:
        if (old := self._kept.pop(key, None)) is not None:
            self._bytes -= len(old.packed)
