"""Processes that are forked from one interpreter do not have their objects at the same addresses."""

from __future__ import annotations

import json
import os

from stagetree.runtime.machine import spread_addresses


class Part:
    """An object as of a user's class."""


class Slotted:
    __slots__ = ("value",)


def addresses() -> list[list[int]]:
    """Of some small objects of a fork, of each kind several: a few lie where others were freed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = spread_addresses()  # noqa: F841 - it is held
        made = [[make() for _ in range(9)] for make in (object, Part, Slotted, lambda: bytes(100))]
        os.write(writing, json.dumps([[*map(id, each)] for each in made]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    found: list[list[int]] = json.loads(os.read(reading, 2**16))
    os.close(reading)
    os.close(writing)
    return found


def test_each_process_has_its_own_addresses() -> None:
    one, other = addresses(), addresses()
    assert [mine != theirs for mine, theirs in zip(one, other, strict=True)] == [True] * 4
