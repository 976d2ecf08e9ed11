"""What the product needs is declared: it runs where only its dependencies, and theirs, can be imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from stacks import ROOT, TOYS
from toys import grid

FENCE = """
import sys
from importlib.machinery import PathFinder

class Fence(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in {missing!r}:
            return super().find_spec(name, path, target)

sys.meta_path[:] = [Fence if finder is PathFinder else finder for finder in sys.meta_path]
"""


def test_a_run_needs_nothing_that_is_not_declared(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FENCE.format(missing=undeclared()))
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(grid("declared")))
    command = [sys.executable, "-m", "app.cli", "run", str(study), "--slots", "1", "--trainers", TOYS[0]]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    where = {"env": environment, "cwd": tmp_path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **where)
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stderr


def undeclared() -> set[str]:
    """The installed modules that come from no distribution that we declare, or that one of these declares."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = closure([Requirement(line) for line in declared])
    providers = packages_distributions().items()
    return {name for name, dists in providers if not allowed & {normal(dist) for dist in dists}} - {"app", "stagetree"}


def closure(wanted: list[Requirement]) -> set[str]:
    """The distributions that an installer would bring."""
    found: set[tuple[str, str]] = set()
    while wanted:
        one = wanted.pop()
        for extra in {"", *one.extras}:
            if (key := (normal(one.name), extra)) not in found:
                found.add(key)
                lines = [Requirement(line) for line in required(one.name)]
                wanted += [line for line in lines if not line.marker or line.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def required(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # for another platform
        return []


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
