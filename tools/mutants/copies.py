"""Copies of the tree, each with a process that runs tests in it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("app", "stagetree", "tests", "tools", "migrations", "examples", "pyproject.toml", "alembic.ini", "README.md")
QUICK = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "STAGETREE_TEST_PART": "all",
    "PYTHONDONTWRITEBYTECODE": "",  # each run compiles again only changed files
}

NO_SUCH_TEST = 4
"""The exit code of pytest for arguments that it does not understand, and where `conftest.py` cannot be imported."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How tests ended: the exit code of pytest, None if one took too long; and the test that failed, if any."""

    code: int | None
    failed: str | None


class Copy:
    """One copy of the tree. `environment` is added to the variables of its tests."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        folder.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(ROOT / name, folder / name)
        self._runner = subprocess.Popen(
            [sys.executable, "-m", "tools.mutants.runner"],
            cwd=folder,
            env={**os.environ, **QUICK, "PYTHONPATH": str(folder), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process and its children."""
        self._runner.terminate()
        self._runner.communicate()

    def run(self, arguments: Sequence[str], seconds: int, environment: Mapping[str, str] | None = None) -> Outcome:
        """Run pytest; its children end with it. seconds: the limit of one test."""
        assert self._runner.stdin is not None and self._runner.stdout is not None
        wanted = {"arguments": [*arguments], "seconds": seconds, "environment": environment or {}}
        self._runner.stdin.write(json.dumps(wanted) + "\n")
        self._runner.stdin.flush()
        code = json.loads(self._runner.stdout.readline())
        if code == NO_SUCH_TEST and "ERROR: not found" in self._log():
            raise RuntimeError("the tests have changed since they were measured: remove .mutants and begin again")
        return Outcome(code, self._failed())

    @contextmanager
    def changed(self, file: str, source: str) -> Iterator[None]:
        """The file is `source` in this copy. No compiled form of the one is taken for the other."""
        target = self.folder / file
        compiled, whole = Path(importlib.util.cache_from_source(str(target))), target.read_text()
        compiled.unlink(missing_ok=True)
        target.write_text(source)
        try:
            yield
        finally:
            target.write_text(whole)
            compiled.unlink(missing_ok=True)

    def _failed(self) -> str | None:
        lines = [line for line in self._log().splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
        return lines[0].split()[1] if lines else None

    def _log(self) -> str:
        return (self.folder / "run.log").read_text(errors="replace")
