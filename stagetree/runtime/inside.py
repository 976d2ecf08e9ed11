"""The objects that are inside of others, and which of them bring back their values by themselves.

Nothing of the user's code is run.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

LIBRARIES = frozenset({"torch", "numpy", "stagetree", "torchdata", "torchvision", "scipy", "pandas", "sklearn"})
"""Of objects of their classes, and of Python's own, only plain values are looked at: the rest is their business."""

MOST_OBJECTS = 2_000
"""In so many objects generators are looked for, from one attribute on."""

LONGEST_LIST = 100
"""They are in no longer list."""

Scalar = bool | int | float | complex | str | bytes | None
Generator = np.random.Generator | np.random.RandomState | random.Random | torch.Generator
CODE = (type, ModuleType, FunctionType, MethodType, property, classmethod, staticmethod)
CONTAINERS = (list, tuple, set, frozenset, dict, deque)
DATA = (Scalar, Generator, torch.Tensor, np.ndarray, np.generic, *CONTAINERS)


def is_object(value: Any) -> bool:
    """Whether it is looked at by its attributes: neither data nor code, and without a state of its own."""
    if isinstance(value, (*DATA, type, ModuleType, FunctionType)):
        return False
    return not has_state(value) and (isinstance(getattr(value, "__dict__", None), dict) or bool(_slots(value)))


def has_state(value: Any) -> bool:
    """Whether it has a `state_dict`."""
    return callable(getattr(type(value), "state_dict", None))


def is_users(value: Any) -> bool:
    """Whether it is of a class that the user may have written, or a function."""
    top = type(value).__module__.partition(".")[0]
    return isinstance(value, FunctionType) or (top not in LIBRARIES and top not in sys.stdlib_module_names)


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object; of a function, the values that it has closed over."""
    if isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # nothing was put there yet
                yield name, cell.cell_contents
        return
    yield from list(getattr(value, "__dict__", {}).items())
    for name in _slots(value):
        with suppress(AttributeError):  # nothing was put there yet
            yield name, object.__getattribute__(value, name)


def _slots(value: Any) -> list[str]:
    """The attributes that a user's classes name in `__slots__`, as those of `dataclass(slots=True)`. Others keep what
    they have looked up in some of theirs, such as `Path`."""
    found = list[str]()
    for kind in type(value).__mro__ if is_users(value) else ():
        named = vars(kind).get("__slots__", ())
        for name in [named] if isinstance(named, str) else named:
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{kind.__name__.lstrip('_')}{name}" if is_private else name)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


class Inner(NamedTuple):
    """An object, and its place. is_hidden: whether it is in a library's object, or in one with a `state_dict`, of which
    no more than that is looked at. is_theirs: whether the nearest object around it is such a one. in_state: whether
    one around it has a `state_dict` that may hold whatever is in there; that of a module holds tensors.
    """

    place: str
    value: Any
    is_hidden: bool = False
    is_theirs: bool = False
    in_state: bool = False

    @property
    def comes_back(self) -> bool:
        """Whether it is the business of an object around it that is saved and loaded."""
        return self.in_state and self.is_theirs


def within(top: Inner, known: Iterable[int] = ()) -> Iterator[Inner]:
    """A value and all that is in it, each once, the outermost ones first. known: the ids of those to pass over."""
    met, waiting, left = {*known, id(top.value)}, deque([top]), MOST_OBJECTS
    while waiting and (left := left - 1):
        yield (around := waiting.popleft())
        value, is_hidden, is_theirs, in_state = around.value, *around[2:]
        if hasattr(value, "__dict__"):
            is_theirs = has_state(value) or not is_users(value)
            in_state |= has_state(value) and not isinstance(value, torch.nn.Module)
        for name, inner in () if isinstance(value, Generator) else _inside(value):
            if id(inner) not in met and not isinstance(inner, Scalar):
                met.add(id(inner))
                place = f"{around.place}{name}"
                waiting.append(Inner(place, inner, is_hidden or is_theirs, is_theirs, in_state))


def of_streams(data: Iterable[Any]) -> frozenset[int]:
    """The ids of the objects that go back to where they were with the place of a stream: those with a `state_dict`, and
    the generators that are in it. data: of the streams.
    """
    found = (inner for each in data for inner in within(Inner("", each)))
    return frozenset(
        id(each.value)
        for each in found
        if has_state(each.value) or (isinstance(each.value, Generator) and each.comes_back)
    )


def _inside(value: Any) -> list[tuple[str, Any]]:
    """The parts of an object or a short collection, by names that go on after its own."""
    if isinstance(value, dict) and len(value) <= LONGEST_LIST:
        return [(f"[{key!r}]", inner) for key, inner in value.items()]
    if isinstance(value, list | tuple | deque) and len(value) <= LONGEST_LIST:
        return [(f"[{number}]", inner) for number, inner in enumerate(value)]
    is_ours = type(value).__module__.partition(".")[0] == "stagetree"
    if is_ours or isinstance(value, (*CODE, torch.Tensor)) or not isinstance(getattr(value, "__dict__", None), dict):
        return []
    own = vars(value) | (value._modules if isinstance(value, torch.nn.Module) else {})
    return [(f".{name}", inner) for name, inner in own.items() if name not in ("_parameters", "_buffers", "_modules")]
