"""A process: how it ends in time, and how its garbage collector leaves a large plan alone.

The collector looks at what is new, often, and never at all there is: a pass over a plan of 100,000 trials takes
seconds. What is new is little, but left to itself the collector lets it become much: as many objects go as come.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Thread
from time import perf_counter
from typing import Any, TypeVar

EXIT_CODE = 70


def end_within(seconds: float, last: Callable[[], None] = lambda: None) -> None:
    """End this process after so many seconds if it is still there; `last` is called before. Returns at once."""

    def wait() -> None:
        time.sleep(seconds)
        print(f"not at an end {seconds:g} s after it was asked to: ends now", file=sys.stderr, flush=True)
        last()
        os._exit(EXIT_CODE)

    Thread(target=wait, name="grace", daemon=True).start()


Key = TypeVar("Key")
Value = TypeVar("Value")

FULL_EVERY = 20
LONG_SECONDS = 0.02
"""A pass that takes longer delays small requests: no thread runs beside it."""

_passes = count(1)


class TrackedDict(dict[Key, Value]):
    """A large dict of tuples of numbers, of names: what the collector need not look at, all the same.

    A plain dict is left alone as long as nothing in it can be part of a cycle, and is new to the collector, with all
    that is in it, each time that something is put into it which might; so that it is gone through again and again.
    One of a class of its own is looked at from the beginning, and set aside once.
    """


def freeze_survivors() -> None:
    """From here on, what outlives a full pass is not looked at again.

    It is still freed when its last reference goes; only what is in a cycle then stays until the process ends.
    """
    gc.callbacks.append(_freeze)


@contextmanager
def no_long_pass_twice(seconds: float = LONG_SECONDS) -> Iterator[None]:
    """In the block, what outlives a full pass of more than so many seconds is not looked at again.

    For a process that answers many at once: passes that are short may find cycles that are about to be garbage.
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
    """Free what became garbage since the last time; now and then, since the last full pass."""
    gc.collect(1 if next(_passes) % FULL_EVERY else 2)


def _freeze(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
