"""What lies in a user's working folder is the user's: none of our processes imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from installed import install
from stacks import ROOT, wait_for

from app.embedded.machine import redis_server, reserve
from app.events.database import Database
from stagetree.client import Client, StagetreeError

TAKEN = ("yaml", "celery", "redis", "uvicorn", "fastapi", "sqlalchemy", "kombu", "alembic")

TRAINER = """
import random
from stagetree import Trainer
from steps import noise

class Walk(Trainer):
    name = "walk"
    def setup(self, hp): self.drift = hp["drift"]
    def __init__(self, *, seed, device):
        super().__init__(seed=seed, device=device)
        self.place = 0.0
    def train(self): self.place += self.drift + noise()
    def evaluate(self): return {"place": self.place}
    def state_dict(self): return {"place": self.place}
    def load_state_dict(self, state): self.place = state["place"]
"""

STUDY = """
{"name": "walk", "trainer": "walk", "metric": "place", "mode": "max",
 "space": {"drift": [0.1, 0.2]}, "tuner": {"kind": "grid", "max_steps": 4}}
"""


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A project with modules called as ours, and as libraries that we need; each fails who imports it."""
    folder = tmp_path / "project"
    folder.mkdir()
    mine = "raise RuntimeError(f'{__name__} is mine')\n"
    if request.param == "app":
        (folder / "app").mkdir()
    (folder / ("app/__init__.py" if request.param == "app" else "app.py")).write_text(mine)
    for name in TAKEN:
        (folder / f"{name}.py").write_text(mine)
    (folder / "trainer.py").write_text(TRAINER)
    (folder / "steps.py").write_text("from random import gauss\n\ndef noise():\n    return gauss(0, 0.1)\n")
    (folder / "study.json").write_text(STUDY)
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"))


def run(folder: Path, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=clean(**environment), capture_output=True, text=True, timeout=600, check=False
    )


def clean(**environment: str) -> dict[str, str]:
    """Our environment without what would lead to this checkout."""
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**ours, **environment}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["app.py"], indirect=True)
def test_a_study_runs_from_a_checkout_beside_modules_called_as_ours(folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "stagetree", "run", "study.json", "--slots", "1", "--no-check"]
    done = run(folder, *command, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert "completed · 2/2 trials · 8/8 unique steps" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["app"], indirect=True)
def test_a_study_runs_from_a_wheel_beside_modules_called_as_ours(folder: Path, programs: Path) -> None:
    done = run(folder, programs / "stagetree", "run", "study.json", "--slots", "1")
    assert done.returncode == 0, done.stderr
    assert "completed · 2/2 trials · 8/8 unique steps" in done.stderr
    read = run(folder, programs / "stagetree", "trials", "last", "-o", "csv")
    assert read.returncode == 0, read.stderr
    assert read.stdout.count("completed") == 2


ORDER = """
from stagetree import Trainer

class Order(Trainer):
    name = "order"
    def setup(self, hp): pass
    def train(self): pass
    def evaluate(self): return {"order": hash("order") % 1000}
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
"""


@pytest.mark.slow
def test_the_order_of_a_set_is_in_a_stack_as_in_every_other(tmp_path: Path) -> None:
    """Each stack had its own: a vocabulary made of a set was another one when its folder was used again."""
    (tmp_path / "trainer.py").write_text(ORDER)
    (tmp_path / "study.json").write_text(STUDY.replace("walk", "order").replace("place", "order"))
    command = [sys.executable, "-P", "-m", "stagetree", "run", "study.json", "--slots", "1", "-o", "json"]
    done = run(tmp_path, *command, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    says = [sys.executable, "-c", "print(hash('order') % 1000)"]
    assert json.loads(done.stdout)["best"]["value"] == int(run(tmp_path, *says, PYTHONHASHSEED="0").stdout)


@pytest.fixture
def manual_cluster(folder: Path, programs: Path) -> Iterator[Client]:
    """The processes of a cluster from a wheel, started in that folder; on one machine, with a file as the log."""
    (api, kept), (broker, kept_too) = (reserve("127.0.0.1", 0) for _ in range(2))
    settings = {
        "STAGETREE_DATABASE_URL": f"sqlite:///{folder}/log.db",
        "STAGETREE_BROKER_URL": f"redis://127.0.0.1:{broker}/0",
        "STAGETREE_TRAINERS": "trainer.py",
        "STAGETREE_LOCKS": str(folder / "locks"),
    }
    Database(settings["STAGETREE_DATABASE_URL"]).create()
    program = str(programs / "stagetree")
    commands = {
        "redis": [redis_server(), "--port", str(broker), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        "api": [program, "api", "--port", str(api)],
        "scheduler": [program, "worker", "scheduler"],
        "cpu0": [program, "worker", "cpu0"],
    }
    with kept, kept_too, ExitStack() as started:
        started.enter_context(client := Client(f"http://127.0.0.1:{api}", retries=0))
        for name, command in commands.items():
            log = started.enter_context((folder / f"{name}.log").open("w"))
            process = subprocess.Popen(command, cwd=folder, env=clean(**settings), stdout=log, stderr=log)
            started.callback(process.wait, 60)
            started.callback(process.terminate)
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["app"], indirect=True)
def test_a_cluster_is_started_by_hand_beside_modules_called_as_ours(manual_cluster: Client, folder: Path) -> None:
    def slots() -> list[str]:
        try:
            return [slot["name"] for slot in manual_cluster.slots()]
        except StagetreeError:
            return []

    def logs() -> str:
        return "".join(path.read_text() for path in folder.glob("*.log"))

    wait_for("the slot", lambda: slots() == ["cpu0"] or "is mine" in logs())
    assert "is mine" not in logs()
    study = manual_cluster.submit(json.loads(STUDY))["study"]
    wait_for("the end of the study", lambda: manual_cluster.study(study)["state"] == "completed")
