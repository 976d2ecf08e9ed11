"""Which numbers of a trainer its training sets, and which of them loading a state leaves as they were.

A counter that is 0 wherever two ways are compared differs nowhere, and may matter for another trial. So it is not
waited for: each such number is changed before a state is loaded, and is to be what the state says after it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any

from stagetree.runtime import state_format
from stagetree.runtime.attributes import OURS, caches
from stagetree.runtime.model import Model
from stagetree.runtime.timeline import Timeline

TRAINING = ("train", "train_batch", "loss", "transform", "transform_batch", "accumulate", "update")
"""Where a step begins, in the classes of users."""


def forgotten(model: Model, timeline: Timeline) -> list[str]:
    """The numbers that training sets and that do not come back with the state, by names like `self.count`.

    The model is left as if its own state had been loaded once more. What raises meanwhile tells nothing.
    """
    trainer, step = model.trainer, model.step
    numbers = {name: value for name in set_in_training(type(trainer)) if _is_number(value := getattr(trainer, name, 0))}
    before = {name: vars(trainer)[name] for name in numbers if name in vars(trainer)}
    numbers = {name: value for name, value in numbers.items() if name not in OURS | caches(trainer)}
    if not numbers:
        return []
    fd, _ = model.save()
    try:
        left = _left(model, timeline, step, fd, numbers)
        for name in numbers:
            _put_back(trainer, name, before)
        model.load(state_format.read(fd), timeline, step)
    finally:
        os.close(fd)
    return [f"self.{name}" for name in left]


def set_in_training(kind: type) -> list[str]:
    """The attributes that a step sets, as far as the code of the user's own classes shows it."""
    methods: dict[str, list[CodeType]] = {}
    for each in [each for each in kind.__mro__ if not each.__module__.startswith("stagetree.")]:
        for name, part in vars(each).items():
            if isinstance(part, FunctionType):
                methods.setdefault(name, []).append(part.__code__)  # an override may call what it overrides
    found, waiting, seen = dict[str, None](), [name for name in TRAINING if name in methods], set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for code in methods[name]:
            found |= dict.fromkeys(_stored(code))
            waiting += [other for other in code.co_names if other in methods and other not in seen]
    return sorted(found)


def _stored(code: CodeType) -> list[str]:
    from dis import get_instructions

    return [str(each.argval) for each in get_instructions(code) if each.opname == "STORE_ATTR"]


def _left(model: Model, timeline: Timeline, step: int, fd: int, numbers: Mapping[str, Any]) -> list[str]:
    """Of these numbers, those that stay what they were changed to."""
    trainer, others = model.trainer, {name: value + 1 for name, value in numbers.items()}
    with suppress(Exception):  # a number that loading depends on tells nothing
        for name, value in others.items():
            setattr(trainer, name, value)
        model.load(state_format.read(fd), timeline, step)
        return [name for name, value in others.items() if getattr(trainer, name, None) == value]
    return []


def _put_back(trainer: Any, name: str, before: Mapping[str, Any]) -> None:
    with suppress(Exception):
        if name in before:
            setattr(trainer, name, before[name])
        else:
            delattr(trainer, name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
