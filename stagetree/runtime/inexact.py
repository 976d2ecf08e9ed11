"""Why a result may differ in its last bits from that of the same trial trained alone: reasons, in words.

Each goes on after "3 stages": operations without a deterministic form, which `determinism: warn` lets through, and
a state that was made under another torch, on another device or with other threads.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

WORDS = {"torch": "torch", "cuda": "CUDA", "device_name": "device", "threads": "number of threads"}
"""What is told of a machine, in the order in which a difference is; see `stagetree.runtime.machine.Machine`."""

_SIGN = "does not have a deterministic"
_MORE = ("deterministic algorithm", "non-deterministic")
_ANY = ".*(does not have a deterministic|deterministic algorithm|non-deterministic)"
_seen: dict[str, None] = {}


def watch() -> None:
    """From here on, note each operation that torch warns of. Each is shown once; other warnings are shown as ever."""
    shown = warnings.showwarning

    def show(message: Any, *args: Any, **kwargs: Any) -> None:
        operation = operation_in(str(message))
        if operation in _seen:
            return
        if operation:
            _seen[operation] = None
        shown(message, *args, **kwargs)

    warnings.filterwarnings("always", message=_ANY)  # or a second model in the process would not be warned of
    warnings.showwarning = show


def forget() -> None:
    """Another model begins."""
    _seen.clear()


def seen() -> list[str]:
    """As torch calls them, in the order in which they came."""
    return list(_seen)


def operation_in(warning: str) -> str:
    """The operation that a warning of torch is about; nothing if it is about something else."""
    if _SIGN in warning:
        return warning.partition(_SIGN)[0].strip()
    return warning.partition(". ")[0].strip() if any(sign in warning for sign in _MORE) else ""


def used(operation: str) -> str:
    """The reason that an operation is."""
    return f"used {operation}, which has no deterministic form"


def changes(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The reasons that there are when a state made `there` goes on `here`; of what either does not tell, none."""
    told = _told(there, here)
    return [f"went on under another {WORDS[name]} ({here[name]} after {there[name]})" for name in told]


def others(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The same as what goes on after "made under": another torch (2.12.0, and 2.13.0 here)."""
    return [f"another {WORDS[name]} ({there[name]}, and {here[name]} here)" for name in _told(there, here)]


def _told(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    return [name for name in WORDS if name in there and name in here and there[name] != here[name]]


def other_metrics(one: Mapping[str, float | None], other: Mapping[str, float | None]) -> str:
    """What is measured differently of the same weights, and the likely cause; nothing if all is equal."""
    name = next((name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)), None)
    if name is None:
        return ""
    return (
        f"of equal weights, {name} is {one.get(name)!r} and {other.get(name)!r}. Likely: evaluate() draws from a "
        "generator of its own, or goes on with what it measured before"
    )
