"""A backup that is made while a study runs, and restored elsewhere: the study ends there with the same values."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from stacks import PATIENCE, TOYS, Service, wait_for
from toys import grid

from app.embedded.stack import Embedded
from stagetree.client import Client
from tests.conftest import drop_database, make_database

PASSWORD = "top secret: 100%/@&?"

pytestmark = pytest.mark.slow(together=True)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Call the command under a umask that lets all users read and write new files."""
    called = [sys.executable, "-m", "stagetree", *map(str, arguments)]
    return subprocess.run(called, capture_output=True, text=True, check=False, umask=0)


def open_to_others(folder: Path) -> list[Path]:
    """What of a folder, and in it, other users of the machine may read or write."""
    return [each for each in (folder, *folder.rglob("*")) if stat.S_IMODE(each.stat().st_mode) & 0o077]


def values(client: Client, study: str) -> list[tuple[int, float | None]]:
    return [(trial.trial, trial.value) for trial in client.trials(study)]


def test_a_backup_of_a_running_study_resumes_elsewhere_to_the_same_values(tmp_path: Path) -> None:
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
    assert any((there / "checkpoints").rglob("*.safetensors"))
    assert open_to_others(kept) == open_to_others(there) == []
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
def completed_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
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
def backed_up(completed_store: tuple[Path, str], tmp_path: Path) -> tuple[Path, str]:
    """A copy of that backup that a test may damage, and the study's id."""
    folder, study = completed_store
    for name in ("here", "kept"):
        shutil.copytree(folder / name, tmp_path / name)
    return tmp_path / "kept", study


def test_damaged_parts_of_a_backup_are_reported_and_retrained(backed_up: tuple[Path, str], tmp_path: Path) -> None:
    kept, study = backed_up
    objects = sorted((kept / "checkpoints").rglob("*.safetensors"))
    objects[0].write_bytes(b"rotten")
    objects[1].unlink()
    said = command("restore", kept, "--dir", tmp_path / "there")
    assert "2 checkpoints are damaged or missing: their steps are trained again" in said.stdout
    assert study in command("studies", "--dir", tmp_path / "there").stdout


def test_impossible_backups_are_refused_in_a_sentence(backed_up: tuple[Path, str], tmp_path: Path) -> None:
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


@pytest.fixture
def on_postgresql(postgres_url: str, postgres_programs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings name a database of PostgreSQL, and its programs are on the path."""
    monkeypatch.setenv("PATH", postgres_programs)
    monkeypatch.setenv("STAGETREE_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("STAGETREE_DATABASE_URL", postgres_url)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("on_postgresql")
def test_of_postgresql(postgres_admin: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dumped and loaded whole; a database that has a log already is left alone."""
    assert command("token", "create", "ci").returncode == 0
    made = command("backup", tmp_path / "kept")
    assert made.returncode == 0, made.stderr
    assert open_to_others(tmp_path / "kept") == []
    taken = command("restore", tmp_path / "kept")
    assert taken.returncode == 2 and "there is a log of stagetree already" in taken.stderr
    name = f"stagetree_{uuid4().hex[:12]}"
    monkeypatch.setenv("STAGETREE_DATABASE_URL", make_database(postgres_admin, name))
    try:
        restored = command("restore", tmp_path / "kept")
        assert restored.returncode == 0, restored.stderr
        assert "gc --adopt" in restored.stdout
        assert command("tokens").stdout.split("\n")[1].startswith("ci ")
    finally:
        drop_database(postgres_admin, name)


@pytest.mark.usefixtures("on_postgresql")
@pytest.mark.parametrize("place", ["login", "option"])
def test_no_command_line_has_the_password(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Every user of the machine sees command lines, all the time that a dump takes."""
    url = make_url(postgres_url)
    secret = url.set(password=PASSWORD) if place == "login" else url.update_query_dict({"password": PASSWORD})
    monkeypatch.setenv("STAGETREE_DATABASE_URL", secret.render_as_string(hide_password=False))
    engine = create_engine(url.set(drivername="postgresql+psycopg"))
    with engine.connect() as held:
        held.execute(text("LOCK TABLE events IN ACCESS EXCLUSIVE MODE"))  # the dump waits for that
        called = [sys.executable, "-m", "stagetree", "backup", str(tmp_path / "kept"), "--no-checkpoints"]
        backup = subprocess.Popen(called, stderr=subprocess.PIPE, text=True)
        dump = wait_for("a dump", lambda: next((each for each in children(backup) if each.name() == "pg_dump"), None))
        lines = [" ".join(each.cmdline()) for each in (psutil.Process(backup.pid), *children(backup))]
        password = dump.environ()["PGPASSWORD"]
    engine.dispose()
    assert backup.wait(PATIENCE) == 0, backup.stderr and backup.stderr.read()
    assert password == PASSWORD
    assert not [line for line in lines if "secret" in line]


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    assert process.poll() is None, process.stderr and process.stderr.read()
    return psutil.Process(process.pid).children(recursive=True)
