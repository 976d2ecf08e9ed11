"""Which tests run: `slow` ones take turns, and `night` ones run at night.

Each run has one part of the slow tests. STAGETREE_TEST_PART chooses it, a number or "all"; otherwise the commit that is
checked out does, so that the next ones have other parts. At night, and outside of a repository, all of them run. Tests
of a file that is marked `slow(together=True)` share something dear, and run in one part.

A test is slow if it takes more than a second of processors, all its cases together: 530 of 3,300 tests took nine tenths
of the time, since they start real processes. If they ran at night only, no submission would run them. With
turns, a defect that only they show appears a few submissions later. Some tests on real processes run at each
submission, in each part.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from zlib import crc32

import pytest

PARTS = 24
AT_NIGHT = "STAGETREE_TEST_MORE" in os.environ


def pytest_report_header() -> str:
    part = chosen_part()
    return "slow tests: all" if part is None else f"slow tests: part {part} of 0 to {PARTS - 1} (STAGETREE_TEST_PART)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases = defaultdict[str, Iterator[int]](count)
    for item in items:
        if item.get_closest_marker("night") and not AT_NIGHT:
            item.add_marker(pytest.mark.skip(reason="a variation, for `make night`"))
        elif mark := item.get_closest_marker("slow"):
            is_together, test = mark.kwargs.get("together"), item.nodeid.partition("[")[0]
            part = part_of(test.partition("::")[0]) if is_together else part_of(test, next(cases[test]))
            if chosen_part() not in (None, part):
                item.add_marker(pytest.mark.skip(reason=f"slow: runs in part {part}"))


def part_of(name: str, case: int = 0) -> int:
    """Of a test, whose cases run in one part after the other; or of a file."""
    return (crc32(name.encode()) + case) % PARTS


@cache
def chosen_part() -> int | None:
    """None where all parts run."""
    wanted = os.environ.get("STAGETREE_TEST_PART") or ("all" if AT_NIGHT else commit_part())
    if wanted == "all":
        return None
    if wanted not in map(str, range(PARTS)):
        raise pytest.UsageError(f"STAGETREE_TEST_PART={wanted}: write a number from 0 to {PARTS - 1}, or all")
    return int(wanted)


def commit_part() -> str:
    """By its hash; "all" where there is none."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return "all"
    return str(int(commit, 16) % PARTS) if commit else "all"
