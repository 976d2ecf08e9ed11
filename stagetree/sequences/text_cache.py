"""Caches of functions of JSON text, which stay small for long texts, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Lock
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SHORT = 1_000
"""Characters. Nearly all sequences are shorter; a request may hold one of a megabyte."""

MOST_LONG = 16
"""The number of longer texts in a cache."""


def cached_by_text(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache the results for the last `maxsize` short texts, which are the first argument, and for a few long ones."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        of_short, of_long = lru_cache(maxsize)(function), lru_cache(MOST_LONG)(function)

        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            return (of_short if len(args[0]) <= SHORT else of_long)(*args, **options)  # type: ignore[arg-type]

        return call

    return decorate


class TextCache(Generic[R]):
    """Values by JSON text: those of the last `most` short texts that were new, and of a few long ones. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._of_short, self._of_long = dict[str, R](), dict[str, R]()
        self._most, self._lock = most, Lock()

    def get(self, text: str, make: Callable[[], R]) -> R:
        """The value of a text. make: makes it if it is not there."""
        values, most = (self._of_short, self._most) if len(text) <= SHORT else (self._of_long, MOST_LONG)
        if (value := values.get(text)) is None:
            value = make()
            with self._lock:
                values[text] = value
                if len(values) > most:
                    del values[next(iter(values))]
        return value
