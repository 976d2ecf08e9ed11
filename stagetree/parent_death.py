"""Ends a process together with its parent, where the system can do that: by `prctl` of Linux.

Elsewhere nothing is done. A slot's processes also end when their connection is closed, so what may stay there is a
program that a trainer started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import Any

PR_SET_PDEATHSIG = 1

_prctl: Any = None
"""Looked up here, since a process that was just forked must not load a library."""
with contextlib.suppress(AttributeError, OSError, TypeError):
    _prctl = ctypes.CDLL(None).prctl


def end_with_parent(parent: int | None = None) -> None:
    """In a new process: have the system kill it when its parent dies, even by SIGKILL.

    Not by SIGTERM, on which a worker would first end its stage.

    parent: its id. If the parent has changed, it died before, and the process ends at once.
    """
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
