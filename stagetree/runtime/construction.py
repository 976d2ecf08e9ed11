"""Construction of a trainer, with a sentence for a class that cannot be constructed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from stagetree.sequences import did_you_mean
from stagetree.trainer import Trainer


def construct(kind: type[Trainer], args: Mapping[str, Any], seed: int, device: str) -> Trainer:
    """The trainer object. Raises `TypeError` for missing methods, and for a constructor without `seed` or `device`."""
    if lacking := sorted(getattr(kind, "__abstractmethods__", ())):
        near = [each for each in vars(kind) if any(did_you_mean(name, [each]) for name in lacking)]
        there = f"; it has {', '.join(near)}" if near else ""
        raise TypeError(f"{kind.__name__} lacks {' and '.join(lacking)}{there}")
    if missing := [name for name in ("seed", "device") if not _takes(kind, name)]:
        wanted = ", ".join(["self", "*", "seed", "device", *args])
        raise TypeError(f"{kind.__name__}.__init__ must take {' and '.join(missing)}: def __init__({wanted})")
    return kind(seed=seed, device=device, **args)


def _takes(kind: type[Trainer], name: str) -> bool:
    """Whether the constructor takes an argument of this name, as far as its signature says."""
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
