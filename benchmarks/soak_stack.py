"""A stack of real processes under work for an hour: `python benchmarks/soak_stack.py [--minutes 60] [--slots 2]`.

Studies follow each other without a pause, and their pages are requested as users would. Every few seconds the script
looks at each process. At the end it prints for each surviving process the growth of its memory, by a line through all
looks after the first fifth, and its open descriptors. The exit code is 1 if memory grew by more than `MOST_GROWTH`, if
there are more descriptors than before, or if a process or a file in /dev/shm outlives the stack.

Memory is what a process has resident (RSS). What belongs to it alone (USS) also grows when a fork copies a page that it
shares, and falls while a process has forks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from app.embedded.stack import Embedded, embedded
from stagetree.client import Client

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from stacks import TOYS  # noqa: E402
from toys import grid  # noqa: E402

LOOK_SECONDS = 5.0
WARM_UP = 0.2
"""The share of the time in which caches fill."""

MOST_GROWTH = 16.0
"""MiB by which a process may grow within the looks that count."""

MOST_DESCRIPTORS = 2
"""By how many the median of the last third may exceed that of the first, of a kind: some are open for a moment."""

AT_ONCE = 2
SHARED_MEMORY = Path("/dev/shm")


class Look(NamedTuple):
    at: float
    """Seconds since the beginning."""
    mib: float
    """Resident memory."""
    descriptors: Counter[str]
    """How many are open of each kind."""


@dataclass
class Watched:
    """One process, by its looks."""

    process: psutil.Process
    name: str
    looks: list[Look] = field(default_factory=list)

    def look(self, at: float) -> None:
        with contextlib.suppress(psutil.Error, OSError):
            memory = self.process.memory_info().rss / 2**20
            self.looks.append(Look(at, memory, descriptors(self.process.pid)))

    def growth(self) -> float:
        """MiB, from the first look to the last one, on the line that fits them best."""
        return self.slope() * (self.looks[-1][0] - self.looks[0][0])

    def slope(self) -> float:
        """MiB a second."""
        return statistics.linear_regression([each.at for each in self.looks], [each.mib for each in self.looks]).slope

    def more_descriptors(self) -> dict[str, float]:
        """By how many the median of the last third of the looks exceeds that of the first, by kind."""
        third = max(1, len(self.looks) // 3)
        kinds = sorted({kind for each in self.looks for kind in each.descriptors})
        first, last = (
            {kind: statistics.median(each.descriptors[kind] for each in part) for kind in kinds}
            for part in (self.looks[:third], self.looks[-third:])
        )
        return {kind: last[kind] - first[kind] for kind in kinds}

    def problems(self) -> Iterator[str]:
        if (grown := self.growth()) > MOST_GROWTH:
            yield f"{self.name} grew by {grown:.1f} MiB, and may by {MOST_GROWTH:.0f}"
        for kind, more in self.more_descriptors().items():
            if more > MOST_DESCRIPTORS:
                yield f"{self.name} has {more:g} more descriptors of {kind}, and may have {MOST_DESCRIPTORS}"

    def __str__(self) -> str:
        first, last = self.looks[0], self.looks[-1]
        most = max(each.descriptors.total() for each in self.looks)
        return (
            f"{self.name:<24} {self.process.pid:>8} {first.mib:>9.1f} {last.mib:>9.1f} {3600 * self.slope():>+11.1f}"
            f" {first.descriptors.total():>6} {last.descriptors.total():>6} {most:>6}"
        )


def descriptors(pid: int) -> Counter[str]:
    """The open descriptors of a process by kind: a file by its path without digits, others by their type."""
    kinds = Counter[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kinds[re.sub(r"\d+|:\[\d+\]", "", str(each.readlink()))] += 1
    return kinds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--slots", type=int, default=2)
    arguments = parser.parse_args()
    before = shared_files()
    with tempfile.TemporaryDirectory() as folder:
        with embedded(Embedded(Path(folder), arguments.slots, TOYS), await_slots=True) as stack:
            watched, studies = soak(stack, 60 * arguments.minutes)
            family = psutil.Process().children(recursive=True)
        outlived = psutil.wait_procs(family, timeout=30.0)[1]
    left = sorted(shared_files() - before - files_of_others())
    problems = [problem for each in watched for problem in each.problems()]
    problems += [f"process {each.pid} outlives the stack" for each in outlived]
    problems += [f"{path} is left" for path in left]
    print(f"{studies} studies in {arguments.minutes:g} minutes; MiB of each process, and its descriptors:")
    print(f"{'':<24} {'pid':>8} {'first':>9} {'last':>9} {'MiB/hour':>11} {'first':>6} {'last':>6} {'most':>6}")
    print(*watched, sep="\n")
    print(*(problems or [f"all level; nothing is left in {SHARED_MEMORY}"]), sep="\n")
    return 1 if problems else 0


def shared_files() -> set[Path]:
    return {path for path in SHARED_MEMORY.glob("*") if not path.is_dir()}


def files_of_others() -> set[Path]:
    """What living processes have mapped: the stack has none any more."""
    mapped = set[Path]()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mapped |= {Path(each.path) for each in process.memory_maps() if each.path.startswith(str(SHARED_MEMORY))}
    return mapped


def soak(stack: Embedded, seconds: float) -> tuple[list[Watched], int]:
    """The processes that lived from the end of the warm-up to the end, and how many studies were completed."""
    begin, watched, numbers, done = time.monotonic(), list[Watched](), count(), 0
    open_studies = list[str]()
    with Client(stack.url) as client:
        while (at := time.monotonic() - begin) < seconds:
            if not watched and at > WARM_UP * seconds:
                watched = [Watched(each, name_of(each)) for each in psutil.Process().children(recursive=True)]
            for each in watched:
                each.look(at)
            still = [study for study in open_studies if not is_over(client, study)]
            done += len(open_studies) - len(still)
            new = [client.submit(work(next(numbers))).study for _ in range(AT_ONCE - len(still))]
            open_studies = [*still, *new]
            time.sleep(max(0.0, LOOK_SECONDS - (time.monotonic() - begin - at)))
    return [each for each in watched if each.process.is_running() and len(each.looks) > 2], done


def work(number: int) -> dict[str, Any]:
    """Every study has a plan of its own."""
    return grid(f"soak {number}", seconds=0.01, name=f"soak-{number}")


def is_over(client: Client, study: str) -> bool:
    """After a look at what a user looks at."""
    client.trials(study)
    client.slots()
    return bool(client.study(study, trials=False).state in ("completed", "failed", "cancelled"))


def name_of(process: psutil.Process) -> str:
    """That of its log, of which a slot has two: its worker, and the fork that trains."""
    with contextlib.suppress(OSError):
        return Path(os.readlink(f"/proc/{process.pid}/fd/1")).stem
    return process.name()


if __name__ == "__main__":
    raise SystemExit(main())
