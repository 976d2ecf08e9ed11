"""What the product needs is declared: it runs where only its dependencies, and theirs, can be imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
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
    (tmp_path / "sitecustomize.py").write_text(FENCE.format(missing=undeclared("all")))
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(grid("declared")))
    command = [sys.executable, "-m", "app.cli", "run", str(study), "--slots", "1", "--trainers", TOYS[0]]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    where = {"env": environment, "cwd": tmp_path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **where)
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stderr


@pytest.mark.parametrize("command", [["--help"], ["studies"]])
def test_without_extras_there_are_the_client_and_the_command_line(tmp_path: Path, command: list[str]) -> None:
    missing = undeclared()
    assert {"torch", "celery", "fastapi", "redis"} <= missing
    (tmp_path / "sitecustomize.py").write_text(FENCE.format(missing=missing))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "STAGETREE_URL": "http://127.0.0.1:9"}
    run = [sys.executable, "-m", "app.cli", *command]
    done = subprocess.run(run, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (69 if command == ["studies"] else 0), done.stderr
    sdk = "from stagetree import Client, StudySpec, Space, load_state, export_weights"
    subprocess.run([sys.executable, "-c", sdk], env=environment, check=True)


def undeclared(*extras: str) -> set[str]:
    """The installed modules that come from no distribution that we declare, or that one of these declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = closure([Requirement(line) for line in declared(project, *extras)])
    providers = packages_distributions().items()
    return {name for name, dists in providers if not allowed & {normal(dist) for dist in dists}} - {"app", "stagetree"}


def declared(project: dict[str, Any], *extras: str) -> list[str]:
    """The requirements of the package with some of its extras, which may bring others of its own."""
    lines = [*project["dependencies"], *(line for name in extras for line in project["optional-dependencies"][name])]
    own = [Requirement(line) for line in lines if line.startswith("stagetree[")]
    others = [line for line in lines if not line.startswith("stagetree[")]
    return others + [line for each in own for line in declared({**project, "dependencies": []}, *each.extras)]


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
