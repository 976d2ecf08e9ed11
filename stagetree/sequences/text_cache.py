"""Caches of functions of JSON text, which stay small for long texts, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

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
