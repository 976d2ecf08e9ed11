"""Bounds the effort of checking a space: how many values are tried, all together.

A space of a kilobyte may have any number of configurations, and its `where` may reject all that are tried. A server
that checks studies of others counts the values, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


class TooMuchEffort(Exception):
    """A check has tried as many values as it may; the message is one sentence."""


@dataclass(slots=True)
class _Effort:
    most: int
    spent: int = 0


_effort: ContextVar[_Effort | None] = ContextVar("_effort", default=None)


@contextmanager
def bounded_effort(most: int) -> Iterator[None]:
    """Within the block, `spend` raises `TooMuchEffort` after `most` values."""
    token = _effort.set(_Effort(most))
    try:
        yield
    finally:
        _effort.reset(token)


def spend(values: int) -> None:
    """Count values that are about to be tried. Raises `TooMuchEffort`; without a bound, does nothing."""
    if (effort := _effort.get()) is not None:
        effort.spent += values
        if effort.spent > effort.most:
            raise TooMuchEffort(
                f"must be simpler: to check it, more than {effort.most:,} values would have to be tried"
            )
