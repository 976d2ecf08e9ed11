"""The processor time that each test and each shared fixture took, in all processes: STAGETREE_TEST_COSTS=FILE.

Each line of the file is one of them, in JSON: `seconds` of processors, and `wall`. Lines are added, so that the
processes of one run, and several runs, may share a file. `python -m tools.costs FILE` prints the sums.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from stacks import SERVED

TICKS = os.sysconf("SC_CLK_TCK")
MARK = "STAGETREE_TEST_PROCESS"


@dataclass
class Spent:
    """Processor seconds of this process, its descendants, and daemons with our mark in their environment."""

    mark: str = field(default_factory=lambda: uuid4().hex)
    apart: dict[tuple[int, int], float] = field(default_factory=dict)
    """By process id and start: the last seen use of processes whose parent has ended."""

    def __post_init__(self) -> None:
        os.environ[MARK] = self.mark

    def seconds(self) -> float:
        seen = dict(filter(None, map(read, filter(str.isdigit, os.listdir("/proc")))))
        below: dict[int, list[int]] = {}
        for pid, (parent, _, _) in seen.items():
            below.setdefault(parent, []).append(pid)

        def tree(pid: int) -> float:
            return seen[pid][2] + sum(map(tree, below.get(pid, [])))

        for pid in below.get(1, []):
            if pid != os.getpid() and self.is_ours(pid):
                self.apart[pid, seen[pid][1]] = tree(pid)
        return tree(os.getpid()) + sum(self.apart.values())

    def is_ours(self, pid: int) -> bool:
        try:
            return f"{MARK}={self.mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False


def read(pid: str) -> tuple[int, tuple[int, int, float]] | None:
    """The parent and start of a process, and the seconds of it and its ended children; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(pid), (int(stat[1]), int(stat[19]), sum(map(int, stat[11:15])) / TICKS)


class Costs:
    """Writes a line for each test, and for each fixture that more than one test may share."""

    def __init__(self, file: Path) -> None:
        self.file, self.spent = file, Spent()

    @contextmanager
    def measure(self, what: str, name: str) -> Generator[None]:
        begun, wall = self.spent.seconds(), time.monotonic()
        yield
        line = {"what": what, "name": name, "seconds": self.spent.seconds() - begun, "wall": time.monotonic() - wall}
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with self.measure("test", item.nodeid.removesuffix(f"@{SERVED}")):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        with self.measure("fixture", f"{fixturedef.baseid}::{fixturedef.argname}"):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with self.measure("collection", "collection"):
            return (yield)


def pytest_configure(config: pytest.Config) -> None:
    if file := os.environ.get("STAGETREE_TEST_COSTS"):
        config.pluginmanager.register(Costs(Path(file)), "cost writer")
