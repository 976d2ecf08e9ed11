"""A limit of time within which a process ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from threading import Thread

EXIT_CODE = 70
"""Of a process that did not end in time."""


def end_within(seconds: float, on_timeout: Callable[[], None] = lambda: None) -> None:
    """Start a thread that ends this process if it is still running after `seconds`. Returns at once."""

    def wait() -> None:
        time.sleep(seconds)
        print(f"did not end within {seconds:g} s: exits now", file=sys.stderr, flush=True)
        on_timeout()
        os._exit(EXIT_CODE)

    Thread(target=wait, name="grace", daemon=True).start()
