"""Keeps Python's garbage collector away from large plans: a pass over a plan of 100,000 trials takes seconds.

A process collects young objects often, and freezes the objects that survive a full collection (`gc.freeze`). Left to
itself, the collector would let garbage pile up, because a scheduler frees as many objects as it creates.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from time import perf_counter
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

FULL_EVERY = 20
"""Every twentieth collection is a full one."""

LONG_SECONDS = 0.02
"""A longer pass delays small requests, because it stops all threads."""

_collections = count(1)


class TrackedDict(dict[Key, Value]):
    """A large dict whose values the collector does not need to visit, such as tuples of numbers.

    The collector untracks a plain dict while its values cannot be part of a cycle. The first value that can be makes
    the dict young again with everything in it, so that it is scanned over and over. A subclass of dict is tracked from
    the beginning, and frozen once.
    """


def freeze_survivors() -> None:
    """From now on, freeze the objects that survive a full collection.

    A frozen object is still freed with its last reference. Only cycles among frozen objects stay until the process
    ends.
    """
    gc.callbacks.append(_freeze)


@contextmanager
def freeze_after_long_passes(seconds: float = LONG_SECONDS) -> Iterator[None]:
    """Within the block, freeze the objects that survive a full collection of more than `seconds`.

    For a process that answers many requests: a short pass may find cycles that are about to become garbage.
    """
    began = [0.0]

    def watch(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            began[0] = perf_counter()
        elif info["generation"] == 2 and perf_counter() - began[0] > seconds:
            gc.freeze()

    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)


def collect_young() -> None:
    """Collect young objects; every `FULL_EVERY` calls, all that are not frozen."""
    gc.collect(1 if next(_collections) % FULL_EVERY else 2)


def _freeze(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
