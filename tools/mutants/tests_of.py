"""The tests that are to notice a mutant: they execute its line, first the quick ones that execute little else."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from tools.mutants.changes import Mutant

SOURCES = ("app/workers", "app/events/sql_rows.py", "app/events/sql_chains.py", "app/events/records.py")
"""What must have no guard that could go."""

MEASURED = (
    "tests/contract",
    "tests/events",
    "tests/workers",
    "tests/scheduler",
    "tests/simulation",
    "tests/processes",
    "tests/runtime",
)
"""The tests whose lines are recorded one by one: they run their subject in their own process. SQLite is enough."""

SLOW = {
    "app/events": ("tests/contract", "tests/events"),
    "app/workers/celery_app.py": ("tests/processes", "tests/e2e/test_outages.py"),
    "app/workers/ownership.py": ("tests/processes/test_ownership.py", "tests/e2e/test_workers.py"),
    "app/workers/prefork.py": ("tests/processes/test_process_ends.py", "tests/processes/test_ownership.py"),
    "app/workers/tasks.py": ("tests/processes", "tests/e2e/test_workers.py"),
    "app/workers/roles.py": ("tests/processes", "tests/e2e/test_workers.py"),
    "app/workers/threads.py": ("tests/processes",),
}
"""Further tests, by the beginning of a file's path, the longest of which counts: on PostgreSQL too, or in processes."""

QUICK_SECONDS = 30.0
"""A mutant meets its quickest tests first, up to this many measured seconds."""

MOST_SECONDS = 150.0
"""A survivor meets further tests, up to this many measured seconds: a thousand tests may execute a line."""


@dataclass(slots=True)
class ExecutedLines:
    """For each file, which tests executed each line; how long each took, and how much of each file it executed."""

    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _numbers: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, written: Path) -> None:
        """Take in what the plugin wrote. A test that failed on the tree as it is notices nothing."""
        run = json.loads(written.read_text(encoding="utf-8"))
        self.seconds |= {test: seconds for test, seconds in run["seconds"].items() if test not in run["failed"]}
        for file, lines in run["lines"].items():
            known = self.lines.setdefault(file, {})
            for line, tests in lines.items():
                known.setdefault(int(line), set()).update({*self.seconds, ""}.intersection(tests))
                for test in tests:
                    self._numbers[test][file] += 1

    def covering(self, mutant: Mutant) -> list[str]:
        """The tests that execute the guard; all of its file's, if it was executed by an import.

        The likeliest come first, one of each file of tests in turn: what one does not notice, its neighbours rarely do.
        """
        lines = self.lines.get(mutant.file, {})
        tests = set().union(*(lines.get(line, set()) for line in mutant.lines))
        tests = set().union(*lines.values()) if "" in tests else tests
        return _alternate(sorted(tests - {""}, key=lambda test: (self._cost(test, mutant.file), test)))

    def _cost(self, test: str, file: str) -> float:
        """The cost of asking a test about a file: its time, divided by the part that it spends there."""
        numbers = self._numbers[test]
        return self.seconds[test] * max(1, numbers.total()) / max(1, numbers[file])

    def quick(self, mutant: Mutant) -> list[str]:
        """The first tests of a mutant."""
        return self._within(QUICK_SECONDS, mutant)

    def others(self, mutant: Mutant) -> list[str]:
        """The next tests of a survivor."""
        return self._within(MOST_SECONDS, mutant)[len(self.quick(mutant)) :]

    def _within(self, most: float, mutant: Mutant) -> list[str]:
        """Tests that execute the guard, for this many seconds, and one at least."""
        covering = self.covering(mutant)
        spent = accumulate(self.seconds[test] for test in covering)
        return [test for test, seconds in zip(covering, spent, strict=True) if seconds <= most] or covering[:1]

    def longest(self, tests: Iterable[str]) -> float:
        """The measured time of the slowest of them; a safe one for a file without measurements."""
        return max((self.seconds.get(test, QUICK_SECONDS) for test in tests), default=0.0)


def _alternate(tests: Sequence[str]) -> list[str]:
    """The first of each file, then the second of each, and so on."""
    number, met = dict[str, int](), Counter[str]()
    for test in tests:
        file = test.partition("::")[0]
        met[file] += 1
        number[test] = met[file]
    return sorted(tests, key=number.__getitem__)


def slow(file: str) -> tuple[str, ...]:
    """The further tests of a file, for what the quick ones have not noticed."""
    fitting = [name for name in SLOW if file.startswith(name)]
    return SLOW[max(fitting, key=len)] if fitting else ()
