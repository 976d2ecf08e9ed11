"""Some of the histories that `benchmarks/soak.py` plays, and the guards that some of them need.

Each runs in a process of its own, so that a seed means the same here and there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.world.guards import GUARDS

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"
MORE = int(os.environ.get("STAGETREE_TEST_MORE", "1"))
EACH = 15
"""Histories of a part: twenty seconds of a processor, so that no run waits for its last part."""

SELDOM = (
    "chains had more than one slot",
    "slots were taken by a worker on another machine",
    "events were lost in fail-overs",
)
"""What the first part shows already."""


def soak(*arguments: str) -> str:
    called = [sys.executable, str(SOAK), *arguments]
    done = subprocess.run(
        called, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16 * MORE))
def test_whatever_happens_the_results_are_those_of_a_calm_run(part: int) -> None:
    said = soak("--seeds", f"{part * EACH}:{(part + 1) * EACH}")
    assert f"{EACH} histories" in said
    for shown in () if part else SELDOM:
        assert re.search(rf"^[1-9]\d* {shown}", said, re.MULTILINE), said


@pytest.mark.slow
def test_without_a_guard_some_history_is_wrong() -> None:
    said = soak("--without", *sorted(GUARDS))
    assert [line.split(",")[0] for line in said.splitlines()] == [f"without {guard}" for guard in sorted(GUARDS)]


@pytest.mark.night
def test_a_process_may_be_killed_at_each_crash_point() -> None:
    said = soak("--seeds", "0:60", "--crash-points")
    assert "no kill" not in said and " histories, " in said


@pytest.mark.slow
def test_a_seed_is_one_history() -> None:
    assert soak("--seeds", "0:3") == soak("--seeds", "0:3")
