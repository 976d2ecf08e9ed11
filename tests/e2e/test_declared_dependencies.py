"""What the product needs is declared: it runs where only its dependencies, and theirs, can be imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from stacks import ROOT, TOYS
from toys import grid
from typer.main import get_command

from app.cli.commands import app as cli
from app.cli.options import DATABASE

COMMANDS: dict[str, Any] = get_command(cli).commands  # type: ignore[attr-defined]
Alone = Callable[..., subprocess.CompletedProcess[str]]
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

TAKEN_BY_TORCH = {"optree"}
"""Torch imports it where it is installed, according to its metadata, and needs it nowhere else."""


@pytest.mark.slow
def test_a_run_needs_nothing_that_is_not_declared(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FENCE.format(missing=undeclared_modules("all")))
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(grid("declared")))
    command = [sys.executable, "-m", "stagetree", "run", str(study), "--slots", "1", "--trainers", TOYS[0]]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    where = {"env": environment, "cwd": tmp_path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **where)
    assert done.returncode == 0, done.stderr
    assert "completed" in done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """A command of the package alone, in a folder with a study file."""
    missing, folder = undeclared_modules(), tmp_path_factory.mktemp("alone")
    assert {"torch", "celery", "fastapi", "redis", "sqlalchemy", "numpy", "scipy"} <= missing
    (folder / "sitecustomize.py").write_text(FENCE.format(missing=missing))
    (folder / "kept").mkdir()
    (folder / "kept" / DATABASE).touch()
    (folder / "study.yaml").write_text(yaml.safe_dump(grid("alone", sinks=["tensorboard:runs"])))
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "STAGETREE_URL": "http://127.0.0.1:9"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, *command]
        return subprocess.run(whole, env=environment, cwd=folder, capture_output=True, text=True, timeout=600)

    return run


def test_without_extras_there_is_the_sdk(alone: Alone) -> None:
    done = alone("-c", "from stagetree import Client, StudySpec, Space, load_state, export_weights")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["studies"],
        ["submit", "study.yaml", "--set", "seed=1"],
        ["run", "study.yaml"],
        ["watch", "last"],
        ["weights", "last"],
        ["delete", "last", "--yes"],
    ],
)
def test_without_extras_commands_ask_a_server(alone: Alone, command: list[str]) -> None:
    done = alone("-m", "stagetree", *command)
    assert (done.returncode, done.stdout) == (69, "")
    assert "stagetree: no stagetree server answers at http://127.0.0.1:9: " in done.stderr
    assert "Traceback" not in done.stderr


def test_without_extras_the_studies_of_a_folder_are_looked_up(alone: Alone) -> None:
    """By the SQLite driver alone. This folder's database has no tables."""
    done = alone("-m", "stagetree", "trials", "last", "--dir", "kept")
    assert done.returncode == 1 and "stagetree: kept: the database's schema is at nothing" in done.stderr


def test_without_extras_there_is_help(alone: Alone) -> None:
    assert alone("-m", "stagetree", "--help").returncode == 0


DRAWN = ["--set", 'space={"lr": {"uniform": [0, 1]}}']
POP = 'tuner={"kind": "pop", "num_trials": 5, "max_steps": 4}'
SOBOL = 'tuner={"kind": "asha", "num_trials": 4, "min_steps": 1, "max_steps": 4, "sampler": "sobol"}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["run", "study.yaml", "--slots", "1", "-q", "--trainers", TOYS[0]], "all"),
        (["demo"], "all"),
        (["up"], "all"),
        (["check", "study.yaml", "--trainers", TOYS[0]], "all"),
        (["audit", "last", "--slots", "1"], "all"),
        (["debug", "last", "0"], "all"),
        (["worker", "gpu0"], "all"),
        (["worker", "scheduler"], "server"),
        (["api"], "server"),
        (["mcp"], "mcp"),
        (["gc", "--yes"], "server"),
        (["open", "kept"], "server"),
        (["backup", "there", "--dir", "kept"], "server"),
        (
            ["preview", "study.yaml", *DRAWN, "--set", 'tuner={"kind": "pop", "num_trials": 5, "max_steps": 4}'],
            "server",
        ),
        (["preview", "study.yaml", *DRAWN, "--set", SOBOL], "server"),
    ],
)
def test_without_extras_the_message_names_the_package(alone: Alone, command: list[str], extra: str) -> None:
    done = alone("-m", "stagetree", *command)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    needs = rf"stagetree: stagetree {command[0]} needs \w+: pip install 'stagetree\[{extra}\]'"
    assert re.fullmatch(needs, done.stderr.splitlines()[-1])
    assert "Starting" not in done.stderr and "Traceback" not in done.stderr


def test_the_tools_for_agents_need_their_extra_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FENCE.format(missing=undeclared_modules("mcp")))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "STAGETREE_URL": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "stagetree", "mcp"]  # stdin is at its end, so it ends as well
    done = subprocess.run(command, env=environment, cwd=tmp_path, input="", capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("study", ["digits", "charlm", "lightning"])  # a grid, conditions, and ASHA
def test_without_extras_a_study_is_priced(alone: Alone, study: str) -> None:
    done = alone("-m", "stagetree", "preview", str(ROOT / "examples" / study / "study.yaml"), "--slots", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trials ")


@pytest.mark.slow
def test_without_extras_every_command_answers_in_a_sentence(alone: Alone) -> None:
    """No command prints a traceback. Commands that need a server get the address of one that does not run."""
    for name, command in COMMANDS.items():
        if name == "sinks":  # it waits for the server
            continue
        needed = ["x" for each in command.params if each.required and each.param_type_name == "argument"]
        done = alone("-m", "stagetree", name, *needed)
        assert "Traceback" not in done.stderr, f"{name}: {done.stderr}"


def undeclared_modules(*extras: str) -> set[str]:
    """The installed modules that come from no distribution that we declare, or that one of these declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = closure([Requirement(line) for line in declared_requirements(project, *extras)])
    providers = packages_distributions().items()
    missing = {name for name, dists in providers if not allowed & {normal(dist) for dist in dists}}
    return missing - {"app", "stagetree"} - TAKEN_BY_TORCH


def declared_requirements(project: dict[str, Any], *extras: str) -> list[str]:
    """The requirements of the package with some of its extras, which may bring others of its own."""
    lines = [*project["dependencies"], *(line for name in extras for line in project["optional-dependencies"][name])]
    own = [Requirement(line) for line in lines if line.startswith("stagetree[")]
    others = [line for line in lines if not line.startswith("stagetree[")]
    return others + [
        line for each in own for line in declared_requirements({**project, "dependencies": []}, *each.extras)
    ]


def closure(wanted: list[Requirement]) -> set[str]:
    """The distributions that an installer would bring."""
    found: set[tuple[str, str]] = set()
    while wanted:
        one = wanted.pop()
        for extra in {"", *one.extras}:
            if (key := (normal(one.name), extra)) not in found:
                found.add(key)
                lines = [Requirement(line) for line in requirements(one.name)]
                wanted += [line for line in lines if not line.marker or line.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def requirements(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:  # for another platform
        return []


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
