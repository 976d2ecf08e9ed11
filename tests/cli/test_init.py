"""`stagetree init` writes files that run as they stand, and overwrites none; `demo` runs the reference study."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from commandline import Stagetree

from app.cli.demo import NEXT
from app.cli.init import TEMPLATES, StartingPoint

STARTS = [
    pytest.param(
        start,
        marks=[
            pytest.mark.skipif(any(find_spec(name) is None for name in template.modules), reason="is not installed"),
            *([pytest.mark.night] if "integrations" in template.extras else []),  # importing them takes long
        ],
    )
    for start, template in TEMPLATES.items()
]


def run_here(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-P", "-m", "stagetree", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("start", TEMPLATES)
def test_a_template_has_all_files_that_it_names(start: StartingPoint, here: Path, stagetree: Stagetree) -> None:
    said = stagetree("init", "--from", start, "mine")
    written = sorted(path.name for path in (here / "mine").iterdir())
    assert said.code == 0 and all(f"mine/{name}" in said.out for name in written)
    texts = [(here / "mine" / name).read_text() for name in written]
    assert not any(re.search(r"examples/|charlm/", text) for text in texts)
    assert "# " in (here / "mine/study.yaml").read_text()
    assert "stagetree run study.yaml" in said.out


@pytest.mark.parametrize("start", TEMPLATES)
def test_a_template_can_be_previewed(start: StartingPoint, here: Path, stagetree: Stagetree) -> None:
    assert stagetree("init", "--from", start).code == 0
    trainer = TEMPLATES[start].trainer
    said = stagetree("preview", "study.yaml", *(() if trainer == "trainer.py" else ("--trainers", trainer)))
    assert said.code == 0 and said.out.startswith("trials ")


def test_nothing_is_overwritten(here: Path, stagetree: Stagetree) -> None:
    mine = here / "trainer.py"
    mine.write_text("mine")
    said = stagetree("init")
    assert (said.code, said.out) == (4, "")
    assert said.err == "stagetree: trainer.py is there already, so nothing was written: name another folder\n"
    assert mine.read_text() == "mine" and [path.name for path in here.iterdir()] == ["trainer.py"]


def test_a_missing_package_is_named(here: Path, stagetree: Stagetree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cli.init.is_installed", lambda module: False)
    said = stagetree("init", "--from", "lightning")
    assert "It needs more than is installed: pip install 'stagetree[all,integrations]'" in said.out


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_a_template_is_exact_and_runs(start: StartingPoint, here: Path, stagetree: Stagetree) -> None:
    """The commands that `init` prints, the run with fewer trials or steps."""
    proposed = re.findall(r"^  stagetree (.*)$", stagetree("init", "--from", start).out, re.MULTILINE)
    assert [command.split()[0] for command in proposed] == ["preview", "check", "run"]
    for command in proposed[:2]:
        run_here(here, *command.split())
    study = yaml.safe_load((here / "study.yaml").read_text())
    fewer = {"max_steps": "tuner.max_steps=2"}
    if "max_steps" not in study["tuner"]:
        fewer = {
            "lr": 'space.lr={"family": "wsd", "peak": 0.01, "warmup": 1, "decay": 1}',
            "steps": "space.max_steps=3",
        }
    changes = [part for change in fewer.values() for part in ("--set", change)]
    printed = run_here(here, *proposed[2].split(), *changes, "--slots", "1", "--no-check")
    assert printed.startswith("Best: trial ")


@pytest.mark.slow
def test_the_demo_proposes_next_commands(here: Path) -> None:
    printed = run_here(here, "demo", "--slots", "2", "--set", "tuner.max_steps=1")
    assert printed.startswith("Best: trial ") and (here / ".stagetree").is_dir()
    assert all(command in printed.partition("\nNext:\n")[2] for command in NEXT)
