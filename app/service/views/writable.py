"""Text from others that can be written: halves of characters, which no encoding has, are spelled out."""

from __future__ import annotations

import re
from typing import Any, TypeVar

T = TypeVar("T")
HALVES = re.compile("[\ud800-\udfff]")


def writable(value: T) -> T:
    """The same, with the halves of characters in all its text spelled out: a traceback may hold bytes of anything."""
    return _writable(value)  # type: ignore[no-any-return]


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return HALVES.sub(lambda found: f"\\u{ord(found.group()):04x}", value) if not value.isascii() else value
    if isinstance(value, dict):
        return {_writable(name): _writable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(inner) for inner in value]
    return value
