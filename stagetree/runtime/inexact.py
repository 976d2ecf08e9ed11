"""The operations without a deterministic form that this process has used under `determinism: warn`."""

from __future__ import annotations

import warnings
from typing import Any

_SIGN = "does not have a deterministic"
_MORE = ("deterministic algorithm", "non-deterministic")
_seen: dict[str, None] = {}


def watch() -> None:
    """From here on, note each that torch warns of. The warnings are shown as ever."""
    shown = warnings.showwarning

    def show(message: Any, *args: Any, **kwargs: Any) -> None:
        if operation := operation_in(str(message)):
            _seen[operation] = None
        shown(message, *args, **kwargs)

    warnings.showwarning = show


def seen() -> list[str]:
    """As torch calls them, in the order in which they came."""
    return list(_seen)


def operation_in(warning: str) -> str:
    """The operation that a warning of torch is about; nothing if it is about something else."""
    if _SIGN in warning:
        return warning.partition(_SIGN)[0].strip()
    return warning.partition(". ")[0].strip() if any(sign in warning for sign in _MORE) else ""
