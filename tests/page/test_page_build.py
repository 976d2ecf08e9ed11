"""The build of the page: the committed files, and the message if it cannot be built."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stacks import ROOT

from app.events.codec import TYPES

PAGE = Path("app") / "page"


def test_no_registry_is_named_in_what_is_locked() -> None:
    locked = json.loads((ROOT / PAGE / "package-lock.json").read_text(encoding="utf-8"))
    assert len(locked["packages"]) > 5
    assert [name for name, package in locked["packages"].items() if "resolved" in package] == []


def test_every_event_has_a_sentence() -> None:
    """Once eight kinds were shown by the name of their type."""
    written = (ROOT / PAGE / "src" / "layout" / "sentences.ts").read_text(encoding="utf-8")
    assert [name for name in TYPES if f"\n  {name}: (" not in written] == []


@pytest.mark.slow
def test_where_it_cannot_be_built_the_reason_is_left(tmp_path: Path) -> None:
    """Here, that the lock is of other packages; the package is installed all the same."""
    shutil.copytree(ROOT / PAGE, tmp_path / PAGE, ignore=shutil.ignore_patterns("node_modules", "dist"))
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    (tmp_path / PAGE / "package-lock.json").write_text('{"lockfileVersion": 3, "packages": {}}')
    done = subprocess.run([sys.executable, "hatch_build.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    problem = (tmp_path / PAGE / "dist" / "problem.txt").read_text(encoding="utf-8")
    assert done.returncode == 1 and problem in done.stderr
    assert "npm ci" in problem and "failed" in problem


def test_what_is_built_already_is_not_built_again(page_folder: Path) -> None:
    """With the same sources, npm is not even called."""
    before = (page_folder / "index.html").stat().st_mtime_ns
    subprocess.run([sys.executable, str(ROOT / "hatch_build.py")], check=True)
    assert (page_folder / "index.html").stat().st_mtime_ns == before
