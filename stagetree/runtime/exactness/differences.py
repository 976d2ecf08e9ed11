"""Finds the first difference of two states.

Pickles in them are compared by their operations and never loaded. Equal objects may have different pickles: an equal
string is written again if it is another object, and referenced if it is the same one.
"""

from __future__ import annotations

import pickletools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from stagetree.runtime import inexact_reasons
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.commands import Compared
from stagetree.runtime.exactness.digests import digest
from stagetree.runtime.exactness.held_values import UNREADABLE, differing_names
from stagetree.runtime.failures import plain
from stagetree.runtime.model import Model
from stagetree.trainer.divided_tensors import Parted, map_parted

LONGEST = 2**22
"""The longest pickle to analyze, in bytes."""

STORE = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
FETCH = frozenset({"GET", "BINGET", "LONG_BINGET"})
CHANGE = frozenset({"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"})
"""Operations that add to the object below their operands on the stack."""

EMPTY = frozenset({"PROTO", "FRAME"})


@dataclass(eq=False)
class _Node:
    """A pickled object: the operation that makes it, and its operands; `None` ends the operands of one operation."""

    name: str
    value: Any = None
    parts: list[_Node | None] = field(default_factory=list)


def say_the_same(one: bytes, other: bytes) -> bool:
    """Whether both are pickles that build their objects in the same way from equal values."""
    if max(len(one), len(other)) > LONGEST or one[:1] != b"\x80" or other[:1] != b"\x80":
        return False
    try:
        return _are_alike(_read(one), _read(other))
    except Exception:  # no pickle, or one of an outdated protocol
        return False


def _read(content: bytes) -> _Node:
    stack: list[_Node] = []
    memo: dict[int, _Node] = {}
    end = 0
    value: Any  # of any type, as the operation has it
    for code, value, place in pickletools.genops(content):
        end = (place or 0) + 1
        if code.name in STORE:
            memo[len(memo) if value is None else int(value)] = stack[-1]
        elif code.name in FETCH:
            stack.append(memo[int(value)])
        elif code.name not in EMPTY and code.name != "STOP":
            _apply(code, value, stack)
    if end != len(content) or len(stack) != 1:
        raise ValueError("there is more than one object")
    return stack.pop()


def _apply(code: pickletools.OpcodeInfo, value: Any, stack: list[_Node]) -> None:
    operands = _take(code, stack)
    if code.name == "POP" or code.name == "POP_MARK":
        return
    if code.name in CHANGE:
        stack[-1].parts += [_Node(code.name), *operands, None]
    elif code.name == "DUP":
        stack.append(stack[-1])
    else:
        stack.append(_Node(code.name, value, list(operands)))


def _take(code: pickletools.OpcodeInfo, stack: list[_Node]) -> list[_Node]:
    """Pop the operands of an operation, except the object that it changes."""
    before = list(code.stack_before)
    if code.name == "DUP":
        return []
    if pickletools.markobject in before:
        mark = max(number for number, node in enumerate(stack) if node.name == "MARK")
        operands = stack[mark + 1 :]
        del stack[mark:]
        return operands
    count = len(before) - (code.name in CHANGE)
    operands = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return operands


def _are_alike(one: _Node, other: _Node) -> bool:
    """Compare two graphs of objects, which may have cycles: each pair is compared once."""
    pairs: list[tuple[_Node | None, _Node | None]] = [(one, other)]
    compared: set[tuple[int, int]] = set()
    while pairs:
        here, there = pairs.pop()
        if here is None or there is None:
            if here is not there:
                return False
            continue
        if (id(here), id(there)) in compared:
            continue
        compared.add((id(here), id(there)))
        same = here.name == there.name and type(here.value) is type(there.value)
        if not same or repr(here.value) != repr(there.value) or len(here.parts) != len(there.parts):
            return False
        pairs += zip(here.parts, there.parts, strict=True)
    return True


Leaves = dict[str, Any]


def leaves(value: Any, path: str = "") -> Leaves:
    """The tensors and values of a state by their paths, in order."""
    found: Leaves = {}
    for name, leaf in _walk(value, path):
        while name in found:  # a key with a dot in it may give an equal path
            name += "'"
        found[name] = leaf
    return found


def first_difference(one: Leaves, other: Leaves) -> str:
    """The number of leaves that differ bit for bit, and the first of them; empty if none does."""
    names = list(dict.fromkeys([*one, *other]))
    wrong = [name for name in names if name not in one or name not in other or not _same(one[name], other[name])]
    if not wrong:
        return ""
    name = next((each for each in wrong if not each.startswith("generators")), wrong[0])
    count = f"{len(wrong)} of {len(names)} leaves differ"
    return f"{count}, the first is {name}{_difference_text(one.get(name), other.get(name))}"


OF_MODULES = frozenset({"_modules", "_parameters", "_buffers"})
"""Module attributes that differ as a consequence of weights or gradients."""


def causes(names: Iterable[str], state: Leaves) -> list[str]:
    """The names of differing held values that may have caused the difference of the states: those not in the state."""
    within = {part for name in state for part in name.replace("[", ".").split(".")}

    def attribute(name: str) -> str:
        parts = [part for part in name.partition(" (")[0].split(".") if part not in OF_MODULES]
        return parts[-1]

    return [name for name in names if attribute(name) not in within]


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and len(value) < 100:  # a longer one is one leaf, such as a generator's state
        for number, item in enumerate(value):
            yield from _walk(item, f"{path}[{number}]")
    else:
        yield path, value


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and _bits(one).equal(_bits(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(_same, one.values(), other.values()))
    if isinstance(one, bytes):
        return one == other or say_the_same(one, other)
    if isinstance(one, float):
        return bool(one.hex() == other.hex())  # -0.0 equals 0.0
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return bool(one == other or (one != one and other != other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _difference_text(one: Any, other: Any) -> str:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape:
            return f" (shapes {tuple(one.shape)} and {tuple(other.shape)})"
        if one.is_floating_point() and one.numel():
            return f" (by up to {(one.double() - other.double()).abs().max().item():.2g})"
        return ""
    if isinstance(one, bytes) and isinstance(other, bytes):
        return f" ({len(one)} and {len(other)} bytes; pickles of equal objects may differ, arrays and numbers do not)"
    scalars = (int, float, str, bool, type(None))
    return f" ({one!r} and {other!r})" if isinstance(one, scalars) and isinstance(other, scalars) else ""


COMPARED = ("trainer", "generators")
"""The parts of a state that are compared. The rest, such as the machine, does not affect training."""

MAX_NAMES = 20
"""The most names to report."""

HELD_VALUES = "holdings"
"""The key in a saved state of the digests of held values, see `stagetree.runtime.exactness.held_values`."""


def compare(mine: Sequence[int], stored: Sequence[int], ignored: Collection[str] = ()) -> Compared:
    """Compare two states in files.

    Each state may be divided among the files of several ranks. The descriptors stay the caller's. ignored: leaves that
    may differ if they are not tensors.
    """
    own, there = (map_parted(state_format.read(*fds), Parted.whole) for fds in (mine, stored))
    one, other = (leaves({name: saved.get(name) for name in COMPARED}) for saved in (there, own))
    for name in ignored:
        if not any(isinstance(each.get(name), torch.Tensor) for each in (one, other)):
            one.pop(name, None), other.pop(name, None)
    is_held, difference = HELD_VALUES in own and HELD_VALUES in there, first_difference(one, other)
    stray = differing_names(there[HELD_VALUES], own[HELD_VALUES]) if is_held else []
    if difference:
        likely = causes(stray, one)
        stray = [name for name in likely if name not in UNREADABLE] or likely
    elsewhere = inexact_reasons.others(there.get("machine", {}), own.get("machine", {}))
    return Compared(plain(difference), elsewhere, list(map(plain, stray[:MAX_NAMES])))


def leaf_digests(model: Model) -> Mapping[str, str]:
    """A digest of each leaf of the model's current state. Raises `TrainerFailed`."""
    found: Leaves = leaves({"trainer": model.state()["trainer"]})
    return {name: digest(value) for name, value in found.items()}
