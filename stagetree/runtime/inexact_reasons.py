"""Why a result may differ in its last bits from that of the same trial trained alone: reasons, in words.

Each goes on after "3 stages": operations without a deterministic form, which `determinism: warn` lets through, and
a state that was made under another torch, on another device or with other threads.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

WORDS = {
    "python": "Python",
    "torch": "torch",
    "cuda": "CUDA",
    "nccl": "NCCL",
    "device_name": "device",
    "processor": "processor",
    "threads": "number of threads",
}
"""What is told of a machine, in the order in which a difference is; see `stagetree.runtime.machine.Machine`."""

UNREPEATABLE = (
    "Likely: training is not repeatable even without a break: an operation without a deterministic form, a clock, a "
    "generator that nobody seeds, or the order of a set"
)
LOST = "Likely: train() reads something that load_state_dict() and setup() do not bring back as it was"
WATCHED = "Likely: evaluate() or state_dict() changes what train() reads"
OF_METRICS = (
    "Likely: evaluate() changes what it reads, or reads something that load_state_dict() does not bring back as it was"
)
"""The cause of a metric that differs where no weight does."""

STRAY = "did not come back with the state"
STATE_LOADED = "after load_state_dict not what it was"

OF_SCRIPTS = {
    LOST: "Likely: the loop reads something that load() of run.state does not bring back as it was",
    WATCHED: "Likely: evaluate() or save() of run.state changes what the loop reads",
    OF_METRICS: (
        "Likely: evaluate() changes what it reads, or reads something that load() of run.state does not bring back as "
        "it was"
    ),
    STATE_LOADED: "after load() of run.state not what it was",
}
"""The same in words of scripts that own their loop, which have none of a class's methods."""

_MEASURED = "of equal weights, "
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


def note(operations: Iterable[str]) -> None:
    """Another process of the same trial has seen these."""
    _seen.update(dict.fromkeys(operations))


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
    return [f"went on under another {name} ({now} after {before})" for name, before, now in _told(there, here)]


def others(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The same as what goes on after "made under": another torch (2.12.0, and 2.13.0 here)."""
    return [f"another {name} ({before}, and {now} here)" for name, before, now in _told(there, here)]


def _told(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The words for each difference, with the value before and now; packages have their own names."""
    named = [(word, there[name], here[name]) for name, word in WORDS.items() if name in there and name in here]
    before, now = there.get("packages", {}), here.get("packages", {})
    packages = [(name, before[name], now[name]) for name in sorted(before.keys() & now.keys())]
    return [each for each in (*named, *packages) if each[1] != each[2]]


def other_metrics(
    one: Mapping[str, float | None], other: Mapping[str, float | None], *, of_equal_weights: bool = True
) -> str:
    """What is measured differently; nothing if all is equal. of_equal_weights: whether the weights are the same."""
    name = next((name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)), None)
    if name is None:
        return ""
    return f"{_MEASURED if of_equal_weights else ''}{name} is {one.get(name)!r} and {other.get(name)!r}"


def is_of_metrics(difference: str) -> bool:
    """Whether a difference is one of those, and not one of weights."""
    return difference.startswith(_MEASURED)


_OF_THE_STATE = ("._modules", "._parameters", "._buffers", ".state", ".param_groups")
"""What holds tensors of the state is named last."""


def not_in_state(names: Iterable[str]) -> str:
    """The likely cause that these attributes are; nothing if there are none."""
    named = ", ".join(sorted(names, key=lambda name: any(part in name for part in _OF_THE_STATE))[:3])
    return f"Likely: {named} not in the state: {STATE_LOADED}" if named else ""


def of_metrics(stray: Iterable[str] = ()) -> str:
    """The likely cause of metrics that differ while the weights are equal. stray: what did not come back."""
    return not_in_state(stray) or OF_METRICS


NOT_LOOKED_AT = "the variables of the processes that `launch` starts were not looked at"


def in_words_of_scripts(text: str, is_launched: bool = False) -> str:
    """A difference with its cause, as it is said of a script that owns its loop, or is launched in processes."""
    for words, others in OF_SCRIPTS.items():
        text = text.replace(words, others)
    return f"{text}; {NOT_LOOKED_AT}" if text and is_launched else text
