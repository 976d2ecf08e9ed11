"""Whether two pickles say the same. Equal objects may have pickles that differ: an equal string that was another object
is written once more, where one and the same would only be referred to. Nothing is ever unpickled.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import Any

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
    taken = _take(code, stack)
    if code.name == "POP" or code.name == "POP_MARK":
        return
    if code.name in CHANGE:
        stack[-1].parts += [_Node(code.name), *taken, None]
    elif code.name == "DUP":
        stack.append(stack[-1])
    else:
        stack.append(_Node(code.name, value, list(taken)))


def _take(code: pickletools.OpcodeInfo, stack: list[_Node]) -> list[_Node]:
    """The operands of an operation, from the stack; without the object that it changes."""
    before = list(code.stack_before)
    if code.name == "DUP":
        return []
    if pickletools.markobject in before:
        mark = max(number for number, node in enumerate(stack) if node.name == "MARK")
        taken = stack[mark + 1 :]
        del stack[mark:]
        return taken
    count = len(before) - (code.name in CHANGE)
    taken = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return taken


def _are_alike(one: _Node, other: _Node) -> bool:
    """Objects may hold each other: no pair is compared twice."""
    pairs: list[tuple[_Node | None, _Node | None]] = [(one, other)]
    seen: set[tuple[int, int]] = set()
    while pairs:
        here, there = pairs.pop()
        if here is None or there is None:
            if here is not there:
                return False
            continue
        if (id(here), id(there)) in seen:
            continue
        seen.add((id(here), id(there)))
        same = here.name == there.name and type(here.value) is type(there.value)
        if not same or repr(here.value) != repr(there.value) or len(here.parts) != len(there.parts):
            return False
        pairs += zip(here.parts, there.parts, strict=True)
    return True
