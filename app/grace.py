"""A process that was asked to end does so, whatever does not answer it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from threading import Thread

EXIT_CODE = 70


def end_within(seconds: float, last: Callable[[], None] = lambda: None) -> None:
    """End this process after so many seconds if it is still there; `last` is called before. Returns at once."""

    def wait() -> None:
        time.sleep(seconds)
        print(f"not at an end {seconds:g} s after it was asked to: ends now", file=sys.stderr, flush=True)
        last()
        os._exit(EXIT_CODE)

    Thread(target=wait, name="grace", daemon=True).start()
