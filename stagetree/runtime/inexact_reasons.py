"""Reasons why a result may differ in its last bits from the same trial trained alone.

Each continues "3 stages": an operation without a deterministic form that `determinism: warn` allows, or a state made
with another torch, on another device or with another number of threads.
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
"""Machine properties to report, in order; see `stagetree.runtime.machine.Machine`."""

UNREPEATABLE = (
    "Likely: training is not repeatable even without a break: an operation without a deterministic form, a clock, a "
    "generator without a seed, the order of a set, or a model that changes when it is saved"
)
LOST = "Likely: train() reads something that load_state_dict() and setup() do not restore"
WATCHED = "Likely: evaluate() or state_dict() changes something that train() reads"
METRIC_CAUSE = "Likely: evaluate() changes its own inputs, or reads something that load_state_dict() does not restore"
"""The cause when a metric differs and no weight does."""

STRAY = "did not come back with the state"
NOT_RESTORED = "not restored by load_state_dict"

SCRIPT_WORDS = {
    LOST: "Likely: the loop reads something that load() of run.state does not restore",
    WATCHED: "Likely: evaluate() or save() of run.state changes something that the loop reads",
    METRIC_CAUSE: (
        "Likely: evaluate() changes its own inputs, or reads something that load() of run.state does not restore"
    ),
    NOT_RESTORED: "not restored by load() of run.state",
}
"""The same causes for scripts that own their loop, which have no methods."""

_MEASURED = "of equal weights, "
_SIGN = "does not have a deterministic"
_MORE = ("deterministic algorithm", "non-deterministic")
_ANY = ".*(does not have a deterministic|deterministic algorithm|non-deterministic)"
_seen: dict[str, None] = {}


def watch() -> None:
    """Record each operation that torch warns of, and show its warning once. Other warnings are shown as usual."""
    shown = warnings.showwarning

    def show(message: Any, *args: Any, **kwargs: Any) -> None:
        operation = operation_in(str(message))
        if operation in _seen:
            return
        if operation:
            _seen[operation] = None
        shown(message, *args, **kwargs)

    warnings.filterwarnings("always", message=_ANY)  # otherwise only a process's first model is warned of
    warnings.showwarning = show


def forget() -> None:
    """Forget the operations when another model begins."""
    _seen.clear()


def note(operations: Iterable[str]) -> None:
    """Record operations that another process of the trial has reported."""
    _seen.update(dict.fromkeys(operations))


def recorded_operations() -> list[str]:
    """The recorded operations, by torch's names, in order."""
    return list(_seen)


def operation_in(warning: str) -> str:
    """The operation that a warning of torch is about; empty for other warnings."""
    if _SIGN in warning:
        return warning.partition(_SIGN)[0].strip()
    return warning.partition(". ")[0].strip() if any(sign in warning for sign in _MORE) else ""


def used(operation: str) -> str:
    """The reason for an operation."""
    return f"used {operation}, which has no deterministic form"


def changes(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The reasons when a state made `there` is continued `here`. Properties that either side lacks are skipped."""
    found = _property_differences(there, here)
    return [f"resumed under another {name} ({now} after {before})" for name, before, now in found]


def others(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The same in the form that follows "made under": another torch (2.12.0, and 2.13.0 here)."""
    return [f"another {name} ({before}, and {now} here)" for name, before, now in _property_differences(there, here)]


def _property_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Each differing property, with its values before and now; packages by their names."""
    named = [(word, there[name], here[name]) for name, word in WORDS.items() if name in there and name in here]
    before, now = there.get("packages", {}), here.get("packages", {})
    packages = [(name, before[name], now[name]) for name in sorted(before.keys() & now.keys())]
    return [each for each in (*named, *packages) if each[1] != each[2]]


def other_metrics(
    one: Mapping[str, float | None], other: Mapping[str, float | None], *, of_equal_weights: bool = True
) -> str:
    """The first metric that differs; empty if none does. of_equal_weights: whether the weights are equal."""
    name = next((name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)), None)
    if name is None:
        return ""
    return f"{_MEASURED if of_equal_weights else ''}{name} is {one.get(name)!r} and {other.get(name)!r}"


def is_of_metrics(difference: str) -> bool:
    """Whether it is a difference of metrics."""
    return difference.startswith(_MEASURED)


_OF_THE_STATE = ("._modules", "._parameters", "._buffers", ".state", ".param_groups")
"""Attributes that hold tensors of the state. Many differ because another value does."""


def unrestored_cause(names: Iterable[str]) -> str:
    """The likely cause when these values were not restored; empty for none."""
    given = list(names)
    others = [name for name in given if not any(part in name for part in _OF_THE_STATE)]
    named = ", ".join((others or given)[:3])
    return f"Likely: {named} {NOT_RESTORED}" if named else ""


def metric_cause(stray: Iterable[str]) -> str:
    """The likely cause of differing metrics with equal weights. stray: names of values that were not restored."""
    return unrestored_cause(stray) or METRIC_CAUSE


NOT_LOOKED_AT = "the variables of the processes that `launch` starts were not looked at"


def rephrase_for_scripts(text: str, is_launched: bool = False) -> str:
    """A difference and its cause in the words of a script that owns its loop. is_launched: in several processes."""
    for words, others in SCRIPT_WORDS.items():
        text = text.replace(words, others)
    return f"{text}; {NOT_LOOKED_AT}" if text and is_launched else text
