"""A Celery worker whose slot's process kills itself, once, when the first part of a checkpoint is stored and the second
is not: `python dying.py FILE worker ...`. FILE is there when it has.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from app.storage.owned_store import OwnedStore

DIED = Path(sys.argv[1])
store = OwnedStore.write


def write(self: OwnedStore, key: str, parts: Iterable[memoryview]) -> None:
    if key.endswith(".1.safetensors") and not DIED.exists():
        DIED.write_text(key)
        os.kill(os.getpid(), signal.SIGKILL)
    store(self, key, parts)


if __name__ == "__main__":
    OwnedStore.write = write  # type: ignore[method-assign]
    sys.argv = ["celery", *sys.argv[2:]]
    runpy.run_module("celery", run_name="__main__", alter_sys=True)
