"""Take each guard out of the workers and of what they write through, one at a time, and see that a test notices.

    python tools/mutants.py [FILE ...] [--jobs 2]

A guard is a condition that keeps something from happening: an `if` that returns, raises, breaks or continues, one side
of an `and`, a condition of a SQL `where`, an `except` that lets work go on. Each is made to let everything through, in
a copy of the tree; a mutant that the tests of its file do not notice survives, is printed, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[1]
COPIED = ("app", "stagetree", "tests", "migrations", "examples", "pyproject.toml", "alembic.ini", "README.md")
TESTS = {
    "app/workers/slot": ("tests/workers",),
    "app/workers/scheduler": ("tests/workers", "tests/scheduling"),
    "app/workers": ("tests/workers", "tests/runtime"),
    "app/events/rows": ("tests/contract", "tests/events", "tests/workers"),
    "app/events/transact.py": ("tests/events", "tests/contract", "tests/workers"),
}
"""Which tests must notice, by the beginning of a file's path; the longest that fits."""

SECONDS = 600.0
"""A mutant that makes the tests hang is noticed."""


@dataclass(frozen=True)
class Mutant:
    """One place in a file where `old` becomes `new`."""

    file: str
    line: int
    what: str
    source: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="by default all that TESTS names")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    mutants = [mutant for file in options.files or _all_files() for mutant in mutants_of(file)]
    survivors = _survivors(mutants, options.jobs)
    print(f"{len(mutants)} mutants, {len(survivors)} survived")
    return 1 if survivors else 0


def _all_files() -> list[str]:
    found = {
        path for name in TESTS for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py"))
    }
    return sorted(str(path.relative_to(ROOT)) for path in found)


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    tree = ast.parse((ROOT / file).read_text())
    for node in ast.walk(tree):
        for what, undo in _changes(node):
            yield Mutant(file, getattr(node, "lineno", 0), what, ast.unparse(tree))
            undo()


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """Change the tree in place, and give the way back."""
    match node:
        case ast.If(test=test, body=[*_, ast.Return() | ast.Raise() | ast.Continue() | ast.Break()]):
            yield from _set(node, "test", ast.Constant(False), f"never: if {ast.unparse(test)}")
        case ast.BoolOp(op=ast.And(), values=values):
            for number, value in enumerate(values):
                rest = values[:number] + values[number + 1 :]
                yield from _set(node, "values", [*rest, ast.Constant(True)], f"without: {ast.unparse(value)}")
        case ast.Call(func=ast.Attribute(attr="where"), args=args) if args:
            for number, value in enumerate(args):
                if ast.unparse(value).startswith("*"):
                    continue
                yield from _set(
                    node, "args", args[:number] + args[number + 1 :], f"without: where {ast.unparse(value)}"
                )
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield from _set(node, "test", ast.Constant(False), f"never: while {ast.unparse(test)}")


def _set(node: ast.AST, name: str, value: object, what: str) -> Iterator[tuple[str, Callable[[], None]]]:
    before = getattr(node, name)
    setattr(node, name, value)
    yield what.replace("\n", " "), lambda: setattr(node, name, before)


def _survivors(mutants: Iterable[Mutant], jobs: int) -> list[Mutant]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies: Queue[Path] = Queue()
        for number in range(jobs):
            copies.put(_copy(Path(folder) / str(number)))

        def survives(mutant: Mutant) -> bool:
            copy = copies.get()
            try:
                return _survives(mutant, copy)
            finally:
                copies.put(copy)

        found = list(mutants)
        return [mutant for mutant, lives in zip(found, pool.map(survives, found), strict=True) if lives]


def _copy(to: Path) -> Path:
    to.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / name)
    return to


def _survives(mutant: Mutant, copy: Path) -> bool:
    target = copy / mutant.file
    whole = target.read_text()
    target.write_text(mutant.source)
    try:
        lives = _pass(_tests_of(mutant.file), copy)
    finally:
        target.write_text(whole)
    print(f"{'SURVIVED' if lives else 'noticed '} {mutant.file}:{mutant.line} {mutant.what}", flush=True)
    return lives


def _tests_of(file: str) -> tuple[str, ...]:
    return TESTS[max((name for name in TESTS if file.startswith(name)), key=len)]


def _pass(tests: Iterable[str], copy: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", *tests]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
