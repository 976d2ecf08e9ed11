"""Where two states differ first, and what in a trainer is likely to be the cause.

Two pickles are compared by what they say, and never unpickled. Equal objects may have pickles that differ: an equal
string that is another object is written once more, where the same object would only be referred to.
"""

from __future__ import annotations

import gc
import pickletools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from stagetree.runtime import inexact
from stagetree.runtime.scripted import OpenScript
from stagetree.trainer.reading import is_ours

LONGEST = 2**22
"""Bytes: longer pickles are not looked into."""

STORE = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
FETCH = frozenset({"GET", "BINGET", "LONG_BINGET"})
CHANGE = frozenset({"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"})
"""What adds to the object below its own operands, which stays where it is."""

EMPTY = frozenset({"PROTO", "FRAME"})


@dataclass(eq=False)
class _Node:
    """An object: by which operation it is made, and from what; `None` ends the operands of one."""

    name: str
    value: Any = None
    parts: list[_Node | None] = field(default_factory=list)


def say_the_same(one: bytes, other: bytes) -> bool:
    """Whether both are pickles of objects that are built in the same way from equal values."""
    if max(len(one), len(other)) > LONGEST or one[:1] != b"\x80" or other[:1] != b"\x80":
        return False
    try:
        return _are_alike(_read(one), _read(other))
    except Exception:  # these bytes are no pickle, or one of a kind that nobody writes any more
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
    """The operands of an operation, from the stack; without the object that it changes."""
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
    """Objects may hold each other: no pair is compared twice."""
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
    """The tensors and values of a state, by their places, as they come."""
    found: Leaves = {}
    for name, leaf in _walk(value, path):
        while name in found:  # a name with a dot in it stands for no other leaf
            name += "'"
        found[name] = leaf
    return found


def first_difference(one: Leaves, other: Leaves) -> str:
    """The first leaf that is not equal to the bit, and of how many leaves how many are not; nothing if all are."""
    names = list(dict.fromkeys([*one, *other]))
    wrong = [name for name in names if name not in one or name not in other or not _same(one[name], other[name])]
    if not wrong:
        return ""
    name = next((each for each in wrong if not each.startswith("generators")), wrong[0])
    count = f"{len(wrong)} of {len(names)} leaves differ"
    return f"{count}, the first is {name}{_by_how_much(one.get(name), other.get(name))}"


def modes(trainer: object) -> dict[str, bool]:
    """Which of a trainer's modules are in training mode, by names like `self.net.0`; of a script its variables'."""
    return {name: module.training for name, module in _modules(trainer)}


def _modules(trainer: object) -> Iterator[tuple[str, nn.Module]]:
    variables = trainer.variables() if isinstance(trainer, OpenScript) else {}
    for root, value in ({f"self.{name}": value for name, value in vars(trainer).items()} | variables).items():
        if isinstance(value, nn.Module):
            yield from ((".".join(filter(None, (root, name))), module) for name, module in value.named_modules())


def changed_modes(before: Mapping[str, bool], after: Mapping[str, bool]) -> dict[str, str]:
    """The modules that are trained in another mode than before, and in which."""
    words = {True: "training", False: "evaluation"}
    return {name: words[after[name]] for name in before if name in after and after[name] != before[name]}


def loaders() -> list[str]:
    """The data sets of a user's DataLoaders whose workers outlive an epoch."""
    kinds = set(_subclasses(DataLoader))
    theirs: list[Any] = [each for each in gc.get_objects() if type(each) in kinds]  # of very many
    lasting = [each for each in theirs if each.persistent_workers and each.num_workers and not is_ours(each)]
    return [type(each.dataset).__name__ for each in lasting]


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    below: list[type] = type.__subclasses__(kind)
    for each in below:
        yield from _subclasses(each)


def restore_modes(trainer: object, before: Mapping[str, bool]) -> None:
    """Put a trainer's modules back in the modes that `modes` returned."""
    for name, module in _modules(trainer):
        module.training = before.get(name, module.training)


def cause(way: str, is_unrepeatable: bool, first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The likeliest reason that a way differs, in a sentence. first: what was seen before the break.

    other: of the way; `modes_matter` says whether the difference went away once modes were put back, if that was tried.
    attributes: a hash of each, in `first` and in `other`, and `fresh` ones of a model that was just built; or, of what
    was found there, the `stray` ones among them.
    Where several reasons could not be told apart, all are named as possible.
    """
    possible = []
    if other.get("modes") and other.get("modes_matter") is not False:
        name, mode = next(iter(other["modes"].items()))
        sentence = f"evaluate() leaves {name} in {mode} mode; end it with train()"
        if other.get("modes_matter"):
            return f"Likely: {sentence}"
        possible.append(sentence)
    if other.get("loaders"):
        possible.append(
            f"persistent loader workers ({', '.join(other['loaders'])}): what they draw depends on how long "
            "they have lived; use persistent_workers=False, or give TorchTrainer the data set and num_workers"
        )
    if len(possible) > 1:
        return f"Possible: {'; or '.join(possible)}"
    if possible:
        return f"Likely: {possible[0]}"
    if way == "again" or is_unrepeatable:
        return inexact.UNREPEATABLE
    if stray := other.get("stray") or _stray(first, other):
        return inexact.not_in_state(stray)
    return inexact.WATCHED if way == "watched" else inexact.LOST


def cause_of_metrics(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The same of a metric that differs where no leaf does. `again`, of what was found: whether it did when it was
    measured once more.
    """
    return inexact.of_metrics(inexact.MEASURING if other["again"] else "", _stray(first, other))


def _stray(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names whose values differ; without values that each process begins anew, such as a time."""
    before, now = first.get("attributes", {}), other.get("attributes", {})
    begun, again = first.get("fresh", {}), other.get("fresh", {})
    return [
        name
        for name in before
        if name in now and now[name] != before[name] and begun.get(name) == again.get(name, begun.get(name))
    ]


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and len(value) < 100:  # longer ones are one leaf: a generator's numbers
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


def _by_how_much(one: Any, other: Any) -> str:
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
