"""What a trainer holds beside its state: all that its objects, its files' globals and its loop's variables reach.

Two objects that trained the same steps in two ways are compared by these. What differs is no fault by itself (clocks,
progress bars and lists for printing do): it is a reason to compare more steps, and the likely cause once a number
differs. So nothing here decides what matters. A look goes as deep as a bounded number of values does, and runs no code
of the user's but `state_dict`, to know which tensors the state has already.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from stagetree.runtime.scripted import OpenScript

MOST_SECONDS = 1.0
"""A look ends after so long; what it has not reached is not compared."""

MOST_VALUES = 100_000
"""So many values are looked at below one name."""

DEEPEST = 30

MOST_BYTES, SAMPLES = 2**22, 2**16
"""Of a longer array, so many of its numbers are looked at."""

OURS = frozenset({"_logged", "_is_driven", "_hp", "_step", "_read", "_script"})
"""Attributes that the runtime itself keeps in a trainer."""

CODE = (type, ModuleType, MethodType, property, classmethod, staticmethod, CodeType)

COUNTED: tuple[type, ...] = (
    enumerate,
    zip,
    map,
    filter,
    reversed,
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
)
"""Iterators that tell where they are without moving."""

Holdings = dict[str, str]
"""A digest of each value, by names like `self.count`, `opt.num_updates` and `PHASE (a global of train.py)`."""


def holdings(trainer: object, modules: Iterable[ModuleType], *, only_modules: bool = False) -> Holdings:
    """All of that, but for what the trainer's `caches` name. modules: of the user's code.

    only_modules: without what the trainer itself holds.
    """
    left_out, ends = OURS | caches(trainer), time.monotonic() + MOST_SECONDS
    in_state, found = frozenset[int]() if only_modules else _tensors_of_state(trainer), Holdings()
    own = () if only_modules else _of_trainer(trainer)
    for name, where, value in itertools.chain(own, _of_modules(modules)):
        if time.monotonic() > ends:
            break
        if name not in left_out:
            for inner, part in _parts_to_name(name, value):
                if inner.rpartition(".")[2] not in left_out:
                    found[f"{inner}{where}"] = _Digest(in_state).of(part)
    return found


def digest(value: Any) -> str:
    """Of one value and all that is in it."""
    return _Digest(frozenset()).of(value)


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names whose values differ, or that only one of them has."""
    return [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]


def caches(trainer: object) -> frozenset[str]:
    """The attributes and globals that its class, its bases, or the script itself say do not matter."""
    named = (vars(kind).get("caches", ()) for kind in type(trainer).__mro__)
    return frozenset(name for names in named for name in ([names] if isinstance(names, str) else map(str, names)))


def _of_trainer(trainer: object) -> Iterator[tuple[str, str, Any]]:
    """Its values, and those of a script's functions that are running: their names, where they stand, and they."""
    own = {} if isinstance(trainer, OpenScript) else vars(trainer)
    yield from ((f"self.{name}", "", value) for name, value in list(own.items()) if name not in OURS)
    for function, variables in (trainer.running() if isinstance(trainer, OpenScript) else {}).items():
        yield from ((name, f" (a variable of {function}())", value) for name, value in list(variables.items()))


def _of_modules(modules: Iterable[ModuleType]) -> Iterator[tuple[str, str, Any]]:
    for module in modules:
        file = (getattr(module, "__file__", None) or module.__name__).rpartition("/")[2]
        yield from ((name, f" (a global of {file})", value) for name, value in _data(vars(module)))
        for kind in [each for each in vars(module).values() if isinstance(each, type)]:
            inside = vars(kind) if kind.__module__ == module.__name__ else {}
            yield from ((f"{kind.__name__}.{name}", " (of the class)", value) for name, value in _data(inside))


def _data(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(namespace.items()):
        is_code = isinstance(value, CODE) or (isinstance(value, FunctionType) and not value.__closure__)
        if not (name.startswith("__") or is_code):
            yield name, value


def _parts_to_name(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object, each by its name, so that a difference is told by the attribute; else the value."""
    parts = list(_attributes(value)) if _is_object(value) else []
    yield from ((f"{name}.{part}", inner) for part, inner in parts)
    if not parts:
        yield name, value


def _is_object(value: Any) -> bool:
    return not isinstance(value, (torch.Tensor, np.ndarray, FunctionType, *CODE)) and not _is_ours(value)


def _is_ours(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "stagetree"


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object has in `__dict__` and in its slots."""
    inside = getattr(value, "__dict__", None)
    if isinstance(inside, dict):
        yield from ((str(name), inner) for name, inner in list(inside.items()))
    for kind in type(value).__mro__:
        named = vars(kind).get("__slots__", ())
        for name in [named] if isinstance(named, str) else named:
            is_private = name.startswith("__") and not name.endswith("__")
            with suppress(AttributeError):  # nothing was put there yet
                yield (
                    name,
                    object.__getattribute__(value, f"_{kind.__name__.lstrip('_')}{name}" if is_private else name),
                )


def _tensors_of_state(trainer: Any) -> frozenset[int]:
    """The addresses of the tensors that are compared as state."""
    found, waiting = set[int](), list[Any]()
    with suppress(Exception):  # it fails where the state is saved, and is told there
        waiting = [trainer.state_dict()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            found.add(_address(value))
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return frozenset(found - {0})


def _address(tensor: torch.Tensor) -> int:
    with suppress(Exception):  # some kinds of tensors have no storage
        return int(tensor.data_ptr())
    return 0


class _Digest:
    """Of a value and all that is in it. in_state: the addresses of tensors whose numbers are looked at elsewhere."""

    def __init__(self, in_state: frozenset[int]) -> None:
        self._hash, self._left, self._in_state = blake2b(digest_size=12), MOST_VALUES, in_state
        self._met = dict[int, int]()

    def of(self, value: Any) -> str:
        with suppress(Exception):  # whatever a library's object does when it is read: the rest of it is not looked at
            self._add(value, 0)
        return self._hash.hexdigest()

    def _say(self, *parts: bytes | str) -> None:
        for part in parts:
            self._hash.update(part if isinstance(part, bytes) else part.encode("utf-8", "backslashreplace"))
            self._hash.update(b"\0")

    def _add(self, value: Any, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            return
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes):
            self._say(kind.__name__, value if isinstance(value, bytes) else repr(value))
            return
        if id(value) in self._met:
            self._say("met", str(self._met[id(value)]))
            return
        self._met[id(value)] = len(self._met)
        self._say(kind.__qualname__)
        self._add_inside(value, depth + 1)

    def _add_inside(self, value: Any, depth: int) -> None:
        match value:
            case torch.Tensor():
                self._add_tensor(value, depth)
            case np.ma.MaskedArray():
                self._add_all((np.asarray(value.data), np.asarray(value.mask)), depth)
            case np.ndarray():
                self._add_array(value, depth)
            case np.generic():
                self._say(value.tobytes())
            case torch.Generator() | np.random.Generator() | np.random.RandomState() | random.Random():
                self._add(_place_of(value), depth)
            case dict():
                self._add_all((part for item in list(value.items()) for part in item), depth)
                self._add_attributes(value, depth)
            case list() | tuple() | deque():
                self._say(str(len(value)))
                self._add_all(list(value), depth)
                self._add_attributes(value, depth)
            case set() | frozenset():
                self._say(*sorted(_Digest(self._in_state).of(each) for each in value))
            case bytearray() | memoryview():
                self._say(bytes(value))
            case GeneratorType():
                if value.gi_frame is not None:
                    self._say(str(value.gi_frame.f_lasti))
                    self._add(dict(value.gi_frame.f_locals), depth)
            case FunctionType():
                self._say(value.__qualname__)
                for cell in value.__closure__ or ():
                    with suppress(ValueError):  # nothing was put there yet
                        self._add(cell.cell_contents, depth)
            case MethodType():
                self._add_all((value.__func__, value.__self__), depth)
            case type() | ModuleType():
                self._say(getattr(value, "__name__", ""))
            case _ if isinstance(value, COUNTED) or type(value).__module__ == itertools.__name__:
                self._add(value.__reduce__()[1:], depth)
            case _ if not _is_ours(value):
                self._add_attributes(value, depth)

    def _add_all(self, values: Iterable[Any], depth: int) -> None:
        for each in values:
            self._add(each, depth)

    def _add_attributes(self, value: Any, depth: int) -> None:
        for name, inner in _attributes(value):
            self._say(name)
            self._add(inner, depth)

    def _add_tensor(self, tensor: torch.Tensor, depth: int) -> None:
        self._say(str(tensor.dtype), str(tuple(tensor.shape)))
        if _address(tensor) not in self._in_state:
            self._say(_bytes_of(tensor.detach()))
        gradient = tensor.grad if tensor.is_leaf else None
        if gradient is not None:
            self._say("grad")
            self._add(gradient, depth)

    def _add_array(self, array: np.ndarray[Any, Any], depth: int) -> None:
        self._say(str(array.dtype), str(array.shape))
        if array.dtype.hasobject:
            self._add_all(array.ravel().tolist(), depth)
        elif array.nbytes <= MOST_BYTES:
            self._say(array.tobytes())
        else:
            flat = array.reshape(-1)
            self._say(np.ascontiguousarray(flat[:: max(1, flat.size // SAMPLES)]).tobytes())


def _bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.reshape(-1)
    if flat.numel() * flat.element_size() > MOST_BYTES:
        flat = flat[:: max(1, flat.numel() // SAMPLES)]
    return flat.cpu().contiguous().view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _place_of(generator: Any) -> Any:
    """Where a random generator is."""
    match generator:
        case torch.Generator():
            return generator.get_state()
        case np.random.Generator():
            return generator.bit_generator.state
        case np.random.RandomState():
            return generator.get_state(legacy=False)
    return generator.getstate()
