"""What a trainer has beside its state: its attributes, those of its classes, and the globals of its files.

They are looked at as hashes, for as long as a moment and as far as a bounded number of items. Nothing of the user's
code is run but `state_dict`.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from stagetree.runtime.inside import (
    CODE,
    Generator,
    Inner,
    Scalar,
    has_state,
    is_object,
    is_users,
    of_streams,
    parts,
    within,
)
from stagetree.runtime.scripted import OpenScript

MOST_ITEMS = 20_000
"""So many values of one attribute are looked at."""

MOST_BYTES, SAMPLES = 2**18, 2**14
"""Of a longer array, so many of its numbers are looked at."""

DEEPEST = 6
MOST_SECONDS = 2.0
LONGEST_VALUE = 40

OURS = frozenset({"_logged"})
Place = tuple[str, str, str, Any]
"""A value that is looked at: its own name, the name that users are told, its file or class, and the value."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A value: its hash, and how it is shown, if that is short."""

    digest: str
    shown: str = ""


def of_trainer(trainer: object) -> dict[str, Seen]:
    """Its attributes, by names like `self.count` and `self.env.count`; without those that its `caches` name.

    Of an optimizer, a module or whatever else has a `state_dict`, that is looked at, and of other objects their own
    attributes; of a library's object, such as a loader, also the generators that are anywhere in it. What cannot be
    compared is left out.
    """
    return _of_all(trainer, [(name, f"self.{name}", "", value) for name, value in vars(trainer).items()])


def of_code(trainer: object, modules: Sequence[ModuleType]) -> dict[str, Seen]:
    """What `of_modules` says, and the generators among the variables of a script's functions that are being run."""
    seen, come_back = of_modules(trainer, modules), of_streams(_streamed(trainer))
    for function, variables in (trainer.running() if isinstance(trainer, OpenScript) else {}).items():
        for name, value in variables.items():
            if name not in caches(trainer):
                seen |= _generators_in(Inner(name, value, True), f" (a variable of {function}())", come_back)
    return seen


def of_modules(trainer: object, modules: Sequence[ModuleType]) -> dict[str, Seen]:
    """The globals of these modules, and the attributes of the classes in them, by names that say which they are."""
    return _of_all(trainer, list(_in_code(modules)))


def _in_code(modules: Sequence[ModuleType]) -> Iterator[Place]:
    for module in modules:
        file = (getattr(module, "__file__", None) or module.__name__).rpartition("/")[2]
        yield from ((name, name, f" (a global of {file})", value) for name, value in _data(vars(module)))
        for kind in [each for each in vars(module).values() if isinstance(each, type)]:
            own = vars(kind) if kind.__module__ == module.__name__ else {}
            yield from ((name, f"{kind.__name__}.{name}", " (of the class)", value) for name, value in _data(own))


def _of_all(trainer: object, places: Sequence[Place]) -> dict[str, Seen]:
    left_out, ends = OURS | caches(trainer), time.monotonic() + MOST_SECONDS
    come_back, seen = of_streams(_streamed(trainer)), dict[str, Seen]()
    known = come_back.union(id(value) for *_, value in places)
    for own, name, where, value in places:
        if own not in left_out and time.monotonic() < ends:
            seen |= {} if id(value) in come_back else seen_in(name, value, where)
            seen |= _generators_in(Inner(name, value), where, known)
    return seen


def _streamed(trainer: object) -> list[Any]:
    return trainer.streamed() if isinstance(trainer, OpenScript) else []


def caches(trainer: object) -> frozenset[str]:
    """The attributes and globals that its class, its bases, or the script itself say do not matter."""
    named = (vars(kind).get("caches", ()) for kind in type(trainer).__mro__)
    return frozenset(name for names in named for name in ([names] if isinstance(names, str) else map(str, names)))


def differing(before: Mapping[str, Seen], now: Mapping[str, Seen]) -> list[str]:
    """The names of what is there both times and differs."""
    return [name for name, each in before.items() if name in now and now[name].digest != each.digest]


def _data(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is no code: neither function, class, module nor descriptor."""
    for name, value in namespace.items():
        if not (name.startswith("__") or isinstance(value, CODE) or hasattr(type(value), "__get__")):
            yield name, value


def seen_in(name: str, value: Any, origin: str = "") -> dict[str, Seen]:
    """A value; of an object that cannot be compared as a whole, those in it."""
    if is_object(value) or isinstance(value, FunctionType):
        inside = {}
        for part, inner in parts(value):
            if part not in OURS and (digest := _look(inner, 1 if is_users(value) else DEEPEST)) is not None:
                inside[f"{name}.{part}{origin}"] = digest
        return inside
    digest = _look(value, 0)
    return {} if digest is None else {f"{name}{origin}": digest}


def _generators_in(top: Inner, origin: str, known: frozenset[int]) -> dict[str, Seen]:
    """The generators in a library's object, where the rest is that library's business, or in one with a `state_dict`.

    known: the ids of values that are looked at by themselves, or need not be.
    """
    inner = (each for each in within(top, known) if isinstance(each.value, Generator))
    found = (each for each in inner if each.is_hidden and not each.comes_back)
    return {f"{each.place}{origin}": seen for each in found if (seen := _look(each.value, 0)) is not None}


def _look(value: Any, depth: int) -> Seen | None:
    digest = _Digest()
    with suppress(Exception):  # whatever a library's object does when it is read: then it is not compared
        digest.add(value, depth)
        if digest.is_known:
            return Seen(digest.text, _shown(value))
    return None


def _shown(value: Any) -> str:
    if isinstance(value, Scalar):
        return text if len(text := repr(value)) <= LONGEST_VALUE else ""
    if isinstance(value, list | tuple | set | frozenset | dict | deque):
        return f"{len(value)} items"
    return ""


class _Digest:
    """Of values as they come. is_known: whether any of them could be looked at."""

    def __init__(self) -> None:
        self._hash, self._left, self._around = hashlib.sha256(), MOST_ITEMS, set[int]()
        self.is_known = False

    @property
    def text(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any, depth: int) -> None:
        """depth: how deep it lies; what lies deeper than `DEEPEST` is only told apart by its type."""
        self._left -= 1
        if self._left < 0 or id(value) in self._around:
            return
        if (leaf := _leaf(value)) is not None:
            self._say(type(value).__name__.encode(), *leaf)
            return
        kind = "list" if type(value) is tuple else type(value).__qualname__  # a state may give one for the other
        self._hash.update(kind.encode())
        if depth >= DEEPEST and not has_state(value):
            return
        self._around.add(id(value))
        self._add_inside(value, depth + 1)
        self._around.discard(id(value))

    def _add_inside(self, value: Any, depth: int) -> None:
        if has_state(value):
            self.is_known = True
            self.add(value.state_dict(), 0)
            if isinstance(value, torch.nn.Module):
                self._add_counters(value)
        elif isinstance(value, dict):
            self._say(str(len(value)).encode())
            for key, item in list(value.items()):
                self.add(key, depth)
                self.add(item, depth)
        elif isinstance(value, list | tuple | deque):
            self._say(str(len(value)).encode())
            for item in list(value):
                self.add(item, depth)
        elif isinstance(value, set | frozenset):
            self._say(str(len(value)).encode(), *sorted(repr(item).encode() for item in value if _is_plain(item)))
        elif isinstance(value, FunctionType) or (is_object(value) and is_users(value)):
            for name, inner in parts(value):
                self._hash.update(name.encode())
                self.add(inner, depth)

    def _add_counters(self, module: torch.nn.Module) -> None:
        """Plain numbers that a user keeps in a module: they are in no state of torch's."""
        for place, each in module.named_modules():
            for name, value in vars(each).items():
                if not name.startswith("_") and name != "training" and isinstance(value, Scalar):
                    self._say(place.encode(), name.encode(), repr(value).encode())

    def _say(self, *parts: bytes | memoryview) -> None:
        self.is_known = True
        for part in parts:
            self._hash.update(part)
            self._hash.update(b"\0")


def _is_plain(value: Any) -> bool:
    """Whether it is a scalar, or a tuple of such."""
    return isinstance(value, Scalar) or (type(value) is tuple and all(map(_is_plain, value)))


def _leaf(value: Any) -> tuple[bytes | memoryview, ...] | None:
    """A value with nothing in it, as bytes; None for others."""
    if isinstance(value, Scalar | np.generic | count):
        return (repr(value).encode("utf-8", "backslashreplace"),)
    if isinstance(value, bytearray):
        return (bytes(value),)
    if isinstance(value, np.random.Generator):
        return (repr(value.bit_generator.state).encode(),)
    if isinstance(value, np.random.RandomState):
        return (repr(value.get_state()).encode(),)
    if isinstance(value, random.Random):
        return (repr(value.getstate()).encode(),)
    if isinstance(value, torch.Generator):
        return (value.get_state().numpy().tobytes(),)
    if isinstance(value, torch.Tensor):
        return _of_tensor(value.detach())
    if isinstance(value, np.ndarray) and value.dtype != object:
        about, flat = f"{value.dtype} {value.shape}".encode(), value.reshape(-1)
        return (about, (flat if value.nbytes <= MOST_BYTES else flat[:: max(1, flat.size // SAMPLES)]).tobytes())
    return None


def _of_tensor(tensor: torch.Tensor) -> tuple[bytes | memoryview, ...]:
    flat = tensor.reshape(-1)
    if flat.numel() * flat.element_size() > MOST_BYTES:
        flat = flat[:: max(1, flat.numel() // SAMPLES)]
    numbers = flat.cpu().contiguous().view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)}".encode(), numbers.tobytes()
