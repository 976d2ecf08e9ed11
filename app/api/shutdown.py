"""Open streams would keep a server from stopping: here they learn of it when the signal comes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def calling_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block a signal to stop also calls `stop`, before whoever handles it.

    Only the main thread may watch signals: a server in another thread must have its streams told otherwise.
    """
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    watched = [number for number in SIGNALS if callable(handlers[number])]

    def handle(number: int, frame: Any) -> None:
        stop()
        if callable(before := handlers[signal.Signals(number)]):
            before(number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in watched:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number in watched:
            if signal.getsignal(number) is handle:
                signal.signal(number, handlers[number])
