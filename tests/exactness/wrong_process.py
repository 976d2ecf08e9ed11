"""Trainers that read the process or the machine instead of their state, each one thing; and set-ups that go wrong."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, ClassVar

from small import Counting, Small

steps_taken = 0


class Global(Small):
    name = "global"

    def push(self) -> float:
        global steps_taken
        steps_taken += 1
        return 1.0 / steps_taken


class ClassAttribute(Small):
    name = "class-attribute"
    taken: ClassVar[list[float]] = []

    def push(self) -> float:
        self.taken.append(self.weight)
        return self.taken[len(self.taken) // 3]


class MutableDefault(Small):
    name = "mutable-default"

    def push(self, seen: list[float] = []) -> float:  # noqa: B006 - the mistake
        seen.append(1.0)
        return 1.0 / len(seen)


class Environment(Small):
    name = "environment"

    def push(self) -> float:
        os.environ["EXACTNESS_BANK"] = str(int(os.environ.get("EXACTNESS_BANK", "0")) + 1)
        return 1.0 / int(os.environ["EXACTNESS_BANK"])


class FilePosition(Small):
    """Reads on in a file that it has open."""

    name = "file-position"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it is read until the end
        self.file.write("".join(f"{number / 7}\n" for number in range(100)))
        self.file.seek(0)

    def push(self) -> float:
        return float(self.file.readline())


class Scratch(Small):
    """Keeps its momentum in a temporary file."""

    name = "scratch"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.file = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - it is there as long as the object

    def push(self) -> float:
        self.file.seek(0)
        velocity = 0.5 * float(self.file.read() or "0") + math.cos(self.weight)
        self.file.seek(0)
        self.file.truncate()
        self.file.write(repr(velocity))
        return velocity


class Clock(Small):
    name = "clock"
    is_repeatable = False

    def push(self) -> float:
        return time.time() % 1.0


class Race(Small):
    """What two threads without a lock leave behind: as good as chance."""

    name = "race"
    is_repeatable = False

    def push(self) -> float:
        return (time.monotonic_ns() // 100) % 97 / 97


class ProcessId(Small):
    name = "process-id"
    is_repeatable = False

    def push(self) -> float:
        return os.getpid() / 100_000


class Addresses(Small):
    """The order of objects by where they lie."""

    name = "addresses"
    is_repeatable = False

    def push(self) -> float:
        return (id(object()) // 16) % 1009 / 1009


class Part:
    def __init__(self, number: int) -> None:
        self.number = number


PARTS = {Part(number) for number in range(12)}


class SetOfParts(Small):
    """Goes through a set of objects, as of modules, whose order follows from where they lie."""

    name = "set-of-parts"
    is_repeatable = False

    def push(self) -> float:
        value = self.weight
        for part in PARTS:
            value = math.sin(value + part.number)
        return value


class Age(Small):
    """Seconds since it was built."""

    name = "age"
    is_repeatable = False

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.built_at = time.monotonic()

    def push(self) -> float:
        return time.monotonic() - self.built_at


class Hooks(Small):
    """Each `setup` adds a hook, and none is ever removed."""

    name = "hooks"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.hooks: list[Callable[[float], float]] = []

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        self.hooks.append(lambda value: 0.9 * value)

    def push(self) -> float:
        value = 1.0
        for hook in self.hooks:
            value = hook(value)
        return value


class Adding(Small):
    """`setup` adds to the rate."""

    name = "adding"

    def setup(self, hp: dict[str, Any]) -> None:
        self.lr += hp.get("lr", 0.0)
        self.wd = hp.get("wd", self.wd)


class Together(Small):
    """The decay is scaled by the rate where both come at once, as they do at first and after a break."""

    name = "together"

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        if "wd" in hp:
            self.wd = hp["wd"] * self.lr


class FirstRate(Small):
    """Continues from the rate of its first set-up."""

    name = "first-rate"
    first: float | None = None

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        self.first = self.lr if self.first is None else self.first

    def push(self) -> float:
        return self.lr / (self.first or 1.0)


class SinceChange(Small):
    """Warms up after each `setup`."""

    name = "since-change"
    shows_in = "halving"
    since = 0

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        self.since = 0

    def push(self) -> float:
        self.since += 1
        return min(1.0, self.since / 5)


class CountsSetups(Counting):
    """Believes that a new phase begins with each `setup`."""

    name = "counts-setups"
    phase = 0

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        self.phase += 1

    def push(self) -> float:
        return 1.0 / self.phase
