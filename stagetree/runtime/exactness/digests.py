"""Digests of values and everything inside them, for comparing objects of two processes.

A digest depends on no address, advances no iterator and runs no user code: overridden methods are bypassed by those of
the base type. It stops after a bounded number of values, and at a deadline.
"""

from __future__ import annotations

import array
import ctypes
import datetime
import decimal
import io
import itertools
import os
import random
import time
import warnings
from collections import ChainMap, OrderedDict, deque
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from hashlib import blake2b
from math import inf
from pathlib import PurePath
from queue import SimpleQueue
from types import BuiltinMethodType, CodeType, FunctionType, GeneratorType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
import torch

MAX_VALUES = 100_000
"""The most values in one digest."""

MAX_DEPTH = 30

MAX_BYTES, SAMPLES = 2**22, 2**16
"""Longer arrays are sampled, by this many of their numbers."""

CLOCK_INTERVAL = 4096
"""The number of values between two looks at the clock."""

PLAIN_TYPES: tuple[type, ...] = (bool, int, float, complex, str, bytes)
BUFFERS = (bytearray, memoryview, array.array, ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
METHODS = (BuiltinMethodType, MethodWrapperType, MethodType)
CODE_TYPES = (type, ModuleType, property, classmethod, staticmethod, CodeType)
REPR_TYPES = frozenset(
    {range, slice, decimal.Decimal, datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
    | {torch.dtype, torch.device, torch.layout}
)
"""Types whose `repr` shows their whole value."""

STANDARD_MODULES = frozenset({"builtins", "itertools", "_collections", "collections"})
"""Modules whose iterators can be pickled without being advanced."""

GENERATORS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
CONTAINERS = (dict, list, tuple, deque, set, frozenset)
CACHED = type(cache(len))
TRANSPARENT_MODULES = frozenset(
    {*STANDARD_MODULES, "torch", "numpy", "re", "_thread", "threading", "weakref", "_weakref", "types", "typing"}
    | {"functools"}
    | {"operator", "_struct", "ctypes", "_io", "_contextvars", "contextvars", "_hashlib", "_abc", "_random", "greenlet"}
    | {"datetime", "decimal", "zoneinfo", "enum", "_queue", "select", "posix", "collections", "uuid", "pathlib"}
)
"""Modules whose objects without attributes hold nothing that matters to a step, or are handled by type."""

HANDLED_TYPES = (
    *(*PLAIN_TYPES, *BUFFERS, *METHODS, *CODE_TYPES, *GENERATORS, *CONTAINERS),
    *(torch.Tensor, np.ndarray, np.generic, np.dtype, FunctionType, GeneratorType, PurePath, partial, io.IOBase),
)
"""Types whose values have more than attributes."""


MAX_CACHED = 1000
"""The longest representation of a plain value whose digest is kept."""


def plain_digest(value: Any) -> str | None:
    """The digest of a short plain value, which most globals are; None for any other value."""
    kind = type(value)
    if value is None or kind in PLAIN_TYPES:
        text = _plain_text(value, kind)
        return _plain_digest(kind.__name__, text) if len(text) <= MAX_CACHED else None
    return None


def _plain_text(value: Any, kind: type) -> str | bytes:
    text: str | bytes = value if kind in (str, bytes) else repr(value)
    return text


@lru_cache(maxsize=1000)
def _plain_digest(kind: str, text: str | bytes) -> str:
    whole = Digest()
    whole._update(kind, text)
    return whole._hash.hexdigest()


def digest(value: Any) -> str:
    """The digest of one value and everything in it."""
    return Digest().compute(value)


def attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes in an object's `__dict__` and slots."""
    inside = None
    with suppress(AttributeError):
        inside = object.__getattribute__(value, "__dict__")
    if isinstance(inside, dict):
        own = dict(inside)
        if isinstance(value, torch.optim.Optimizer) and "param_groups" in own:
            own["param_groups"] = _normalize_groups(own["param_groups"])
        yield from ((str(name), inner) for name, inner in own.items())
    for kind in type(value).__mro__:
        named = vars(kind).get("__slots__", ())
        for name in [named] if isinstance(named, str) else named:
            is_private = name.startswith("__") and not name.endswith("__")
            slot = f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
            with suppress(AttributeError):  # nothing was put there yet
                yield name, object.__getattribute__(value, slot)


def _normalize_groups(groups: Any) -> Any:
    """An optimizer's groups as they are after a state was loaded: with `params` elsewhere, and lists for tuples, such
    as the `betas` of Adam.
    """
    if not (type(groups) is list and all(type(group) is dict for group in groups)):
        return groups
    return [{name: _list_for_tuple(group[name]) for name in sorted(group, key=str)} for group in groups]


def _list_for_tuple(value: Any) -> Any:
    return list(value) if type(value) is tuple else value


def is_ours(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "stagetree"


def address(tensor: torch.Tensor) -> int:
    with suppress(Exception):  # some kinds of tensors have no storage
        return int(tensor.data_ptr())
    return 0


def is_opaque(value: Any, kind: type) -> bool:
    """Whether an object of an extension module does not reveal its content."""
    if kind is SimpleQueue:
        return not value.empty()
    if kind.__module__.partition(".")[0] in TRANSPARENT_MODULES or issubclass(kind, HANDLED_TYPES) or is_ours(value):
        return False
    with suppress(AttributeError):
        object.__getattribute__(value, "__dict__")
        return False
    return not any("__slots__" in vars(each) for each in kind.__mro__)


class Digest:
    """in_state: addresses of tensors that are compared as state and skipped here. ends: the deadline, by
    `time.monotonic`. left_out: objects to skip. is_wary: opaque objects get a random digest, so that they never compare
    equal.
    """

    def __init__(
        self,
        in_state: frozenset[int] = frozenset(),
        ends: float = inf,
        left_out: Sequence[Any] = (),
        *,
        is_wary: bool = False,
    ) -> None:
        self._is_wary = is_wary
        self._hash, self._left, self._in_state, self._ends = blake2b(digest_size=12), MAX_VALUES, in_state, ends
        # values are kept alive, so that no new object gets the address of one that was met
        self._visited: MutableMapping[int, tuple[int, Any]] = {id(each): (-1, each) for each in left_out}

    def compute(self, value: Any) -> str:
        with suppress(Exception):  # a library's object may raise when it is read; the rest of it is skipped
            self._add(value, 0)
        return self._hash.hexdigest()

    def _update(self, *parts: bytes | str) -> None:
        for part in parts:
            self._hash.update(part if isinstance(part, bytes) else part.encode("utf-8", "backslashreplace"))
            self._hash.update(b"\0")

    def _add(self, value: Any, depth: int) -> None:
        self._left -= 1
        if self._left % CLOCK_INTERVAL == 0 and time.monotonic() > self._ends:
            self._left = 0
        if self._left < 0 or depth > MAX_DEPTH:
            return
        kind = type(value)
        if value is None or kind in PLAIN_TYPES:
            self._update(kind.__name__, _plain_text(value, kind))
        elif id(value) in self._visited:
            self._update("met", str(self._visited[id(value)][0]))
        else:
            self._visited[id(value)] = (len(self._visited), value)
            self._update(kind.__qualname__)
            self._add_parts(value, kind, depth + 1)

    def _add_parts(self, value: Any, kind: type, depth: int) -> None:
        if issubclass(kind, CODE_TYPES):
            self._update(type.__repr__(value) if issubclass(kind, type) else getattr(value, "__name__", ""))
            return
        if issubclass(kind, torch.Tensor):
            with torch._C.DisableTorchFunctionSubclass():
                self._add_tensor(value, depth)
        elif issubclass(kind, np.ndarray):
            self._add_array(value, depth)
        elif issubclass(kind, (set, frozenset)):
            # In an order independent of addresses. Of a huge set only the size counts.
            base = set if issubclass(kind, set) else frozenset
            size = base.__len__(value)
            self._update(str(size))
            if size <= self._left:
                self._update(*sorted(self._digest_separately(each, depth) for each in base.__iter__(value)))
        else:
            self._add_all(_parts(value, kind), depth)
        if self._is_wary and is_opaque(value, kind):
            self._update(os.urandom(8))
        if not (is_ours(value) or issubclass(kind, (*METHODS, *BUFFERS, *GENERATORS, PurePath, np.generic))):
            for name, inner in attributes(value):
                self._update(name)
                self._add(inner, depth)

    def _add_all(self, values: Iterable[Any], depth: int) -> None:
        for each in values:
            if self._left < 0:
                return
            self._add(each, depth)

    def _digest_separately(self, value: Any, depth: int) -> str:
        inner = Digest(self._in_state, self._ends, is_wary=self._is_wary)
        inner._left, inner._visited = self._left, ChainMap({}, self._visited)
        inner._add(value, depth)
        self._left = inner._left
        return inner._hash.hexdigest()

    def _add_tensor(self, tensor: torch.Tensor, depth: int) -> None:
        self._update(str(tensor.dtype), str(tuple(tensor.shape)), str(tensor.requires_grad))
        if address(tensor) not in self._in_state:
            with suppress(Exception):  # some kinds of tensors have no numbers
                self._update(_bytes_of(tensor.detach()))
        gradient = tensor.grad if tensor.is_leaf else None
        if gradient is not None:
            self._update("grad")
            self._add(gradient, depth)

    def _add_array(self, array: np.ndarray[Any, Any], depth: int) -> None:
        self._update(str(array.dtype), str(array.shape))
        if isinstance(array, np.ma.MaskedArray):
            self._add(np.ma.getmaskarray(array), depth)
        array = np.asarray(array)
        if array.dtype.hasobject:
            self._add_all(array.flat, depth)
        elif array.nbytes <= MAX_BYTES:
            self._update(array.tobytes())
        else:
            flat = array.reshape(-1)
            self._update(np.ascontiguousarray(flat[:: max(1, flat.size // SAMPLES)]).tobytes())


def _bytes_of(tensor: torch.Tensor) -> bytes:
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    last = tensor.storage_offset() + reach
    if tensor.untyped_storage().nbytes() < (last + 1) * tensor.element_size():
        return b""  # FSDP frees the storages of parameters between steps
    flat = tensor.reshape(-1)
    if flat.numel() * flat.element_size() > MAX_BYTES:
        flat = flat[:: max(1, flat.numel() // SAMPLES)]
    if not flat.numel():
        return b""
    copy = flat.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return copy.view(torch.uint8).numpy().tobytes()  # a copy, since torch cannot resize a storage shared with NumPy


def _parts(value: Any, kind: type) -> Iterable[Any]:
    """The values inside a value, in an order that is equal in all processes."""
    if kind in REPR_TYPES or issubclass(kind, np.dtype):
        return (repr(value),)
    plain: Any = next((each for each in PLAIN_TYPES if issubclass(kind, each)), None)
    if plain is not None:
        return (bytes(value) if plain is bytes else plain.__repr__(value),)
    if issubclass(kind, np.generic):
        return (value.tobytes(),)
    if issubclass(kind, OrderedDict):
        return (part for key in OrderedDict.__iter__(value) for part in (key, dict.__getitem__(value, key)))
    if issubclass(kind, dict):
        return (part for item in dict.items(value) for part in item)
    for base in (list, tuple, deque):
        if issubclass(kind, base):
            return itertools.chain((base.__len__(value),), base.__iter__(value))
    if issubclass(kind, GENERATORS):
        return (_place_of(value),)
    return _parts_of_code_and_iterators(value, kind)


def _parts_of_code_and_iterators(value: Any, kind: type) -> Iterable[Any]:
    if issubclass(kind, BUFFERS):
        return (memoryview(value).tobytes(),)
    if issubclass(kind, PurePath):
        return (PurePath.__str__(value),)
    if issubclass(kind, partial):
        return (value.func, value.args, value.keywords)
    if issubclass(kind, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell)]
        return (value.__qualname__, value.__code__.co_firstlineno, value.__defaults__, value.__kwdefaults__, *cells)
    if issubclass(kind, METHODS):
        owner = value.__self__
        return (value.__name__, None if isinstance(owner, ModuleType) else owner)
    if issubclass(kind, GeneratorType):
        frame = value.gi_frame
        return () if frame is None else (frame.f_lasti, dict(frame.f_locals), value.gi_yieldfrom)
    if kind is SimpleQueue:
        return (value.qsize(),)
    if kind is ContextVar:
        return (value.get(None),)
    if kind is CACHED:
        return (value.__wrapped__, *value.cache_info())
    if kind.__module__ == "_io":
        return (_place_in(value),)
    return _iterator_state(value, kind)


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:  # nothing was put there yet
        return True


def _iterator_state(value: Any, kind: type) -> Iterable[Any]:
    """The state of an iterator of the standard library, as pickle would store it."""
    bases = (each for each in kind.__mro__ if each.__module__ in STANDARD_MODULES and "__reduce__" in vars(each))
    base: Any = next((each for each in bases if each is not object), None)
    if base is None or not ("__next__" in vars(base) or base.__module__ == "itertools"):
        return ()
    with warnings.catch_warnings():  # newer Python versions deprecate that
        warnings.simplefilter("ignore")
        return tuple(base.__reduce__(value)[1:])


def _place_in(file: Any) -> int:
    """The position in a file; -1 if it has none."""
    with suppress(Exception):
        return int(file.buffer.tell() if isinstance(file, io.TextIOWrapper) and file.writable() else file.tell())
    return -1


def _place_of(generator: Any) -> Any:
    """The state of a random generator."""
    match generator:
        case torch.Generator():
            return generator.get_state().numpy()  # an array, whose address cannot be that of a tensor of the state
        case np.random.Generator():
            return generator.bit_generator.state
        case np.random.BitGenerator():
            return generator.state
        case np.random.RandomState():
            return np.random.RandomState.get_state(generator, legacy=False)
    return random.Random.getstate(generator)
