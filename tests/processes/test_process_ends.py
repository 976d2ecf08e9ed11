"""A process ends at a signal, and its forks notice without any channel between them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from assignments import WORK
from forks import run_in_fork
from stacks import wait_for
from transactions import TTL, Transactions

from app.embedded import interpreters
from app.embedded.interpreters import Interpreters, WorkerInterpreter
from app.embedded.machine import Scratch, StackFailed
from app.embedded.stack import Embedded
from app.events.database import Database
from app.settings import settings
from app.workers.prefork import MAX_LOG_CHARACTERS, Prefork
from app.workers.tasks import ShutdownFlag

HANGS = """
import sys, threading
from app.process.limits import EXIT_CODE, end_within
end_within(0.1, lambda: print("last"))
threading.Event().wait()
"""


def test_hanging_processes_end() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 70
    assert "did not end within 0.1 s" in ended.stderr


def test_a_fork_knows_that_its_worker_is_to_end() -> None:
    retiring = ShutdownFlag()
    assert not retiring.is_asked
    ready, answer = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(ready[0], 1)
        os.write(answer[1], b"yes" if retiring.is_asked else b"no")
        os._exit(0)
    retiring.ask()
    os.write(ready[1], b"x")
    assert os.read(answer[0], 3) == b"yes"
    os.waitpid(pid, 0)


def test_a_stack_that_was_not_started_can_be_stopped(tmp_path: Path) -> None:
    """An interrupt during the start stops all started processes."""
    for folder in (tmp_path / "not there", tmp_path):
        Embedded(folder, 1, ()).stop()
    Database(f"sqlite:///{tmp_path / 'stagetree.db'}").engine.connect().close()  # a file without tables
    Embedded(tmp_path, 1, ()).stop()


DEAF = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print(flush=True); time.sleep(600)"


@pytest.mark.slow
def test_a_stack_ends_when_all_is_saved(tmp_path: Path) -> None:
    """Once it waited two seconds for Celery to end, after an unneeded comparison was stopped."""
    assert run_in_fork(run_until_sigterm, Deaf, tmp_path, is_in_use=True, is_saved=True) == (0, True, True)


@pytest.mark.slow
def test_an_idle_stack_ends_at_once(tmp_path: Path) -> None:
    assert run_in_fork(run_until_sigterm, Deaf, tmp_path, is_in_use=False) == (0, True, False)


@pytest.mark.slow
def test_the_api_outlives_the_workers(tmp_path: Path) -> None:
    """The page shows the saving for which users wait."""
    assert run_in_fork(run_until_sigterm, Sleeping, tmp_path, is_in_use=True) == (0, True, False)


class Sleeping(Prefork):
    """Its forks sleep until the signal."""

    def _fork(self, name: str, command: object) -> int:
        return subprocess.Popen(["sleep", "60"]).pid


class Deaf(Prefork):
    """Its forks sleep and ignore the signal."""

    def _fork(self, name: str, command: object) -> int:
        fork = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE)
        assert fork.stdout is not None
        fork.stdout.read(1)
        return fork.pid


def end() -> None:
    """What a fork runs that does nothing."""


def run_until_sigterm(
    kind: type[Prefork], folder: Path, *, is_in_use: bool, is_saved: bool = False
) -> tuple[int, bool, bool]:
    """Start the processes and send SIGTERM: the exit code, whether the API outlived it, and whether the state is saved.

    is_saved: whether the state is saved half a second after the SIGTERM, or never.
    """
    os.environ["STAGETREE_DATABASE_URL"] = url = f"sqlite:///{folder / 'stagetree.db'}"
    settings.cache_clear()
    database = Database(url)
    database.create()
    rows = Transactions(database)
    rows.slots.take("gpu0", "anna", instead_of=None, device="cpu", host="host", pid=1)
    if is_in_use:
        rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
    processes, saved = kind(folder), threading.Event()
    processes.start(dict.fromkeys(("api", "gpu0", "scheduler"), end))
    api, *_ = forks = sorted(psutil.Process().children(), key=lambda child: child.pid)
    before = signal.getsignal(signal.SIGTERM)

    def ask() -> None:
        wait_for("its handler", lambda: signal.getsignal(signal.SIGTERM) != before)
        os.kill(os.getpid(), signal.SIGTERM)
        if is_saved:
            time.sleep(0.5)
            saved.set()
            rows.chains.finish("c", rows.chains.claim("c", "worker", TTL).fence)

    threading.Thread(target=ask, daemon=True).start()
    said = (processes.watch(), api.is_running(), saved.is_set())
    for fork in forks:
        with contextlib.suppress(psutil.NoSuchProcess):
            fork.kill()
    return said


LATE = """
import os, signal, sys, time
from pathlib import Path
from app.workers import prefork
parent = os.getpid()

def end_with_parent():
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)

prefork.end_with_parent = end_with_parent
prefork.Prefork(Path(sys.argv[1])).start({"gpu0": lambda: print("it began", flush=True)})
signal.pause()
"""


@pytest.mark.slow
def test_a_fork_ends_when_its_parent_is_killed_at_once(tmp_path: Path) -> None:
    """Once three workers of a `run` that was killed while it forked them continued to train."""
    command = [sys.executable, "-c", LATE, str(tmp_path)]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, timeout=600, check=False
    )  # waits for the end of the fork, too
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "gpu0.log").exists()


def processes_vanish(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
    """`Path.stat` when each process ends between reading /proc and its files; the sweep then once failed."""
    if path.parts[:2] == ("/", "proc"):
        raise ProcessLookupError
    return os.stat(path, follow_symlinks=follow_symlinks)


def test_the_next_stack_ends_processes_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "stat", processes_vanish)
    living, dead = Scratch(), tmp_path / "stagetree-dead"
    dead.mkdir()
    (dead / "alive").touch()  # and no process has locked it
    stray, other = (
        subprocess.Popen(["sleep", "600"], env={"STAGETREE_STACK": str(folder)}, start_new_session=True)
        for folder in (dead, living.path)
    )
    Scratch().delete()
    try:
        assert stray.wait(60) == -signal.SIGKILL
        assert other.poll() is None
        assert not dead.exists()
    finally:
        other.kill()
        other.wait()
        living.delete()


@pytest.mark.slow
def test_a_worker_that_ends_by_itself_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    (early := tmp_path / "early").mkdir()
    workers = WorkerInterpreter(str(early))
    with (tmp_path / "workers.log").open("ab") as log:
        workers.tell(["sofa"], tmp_path, {"STAGETREE_BROKER_URL": "memory://"}, log)
    workers.release()
    assert workers.process.wait(600) == 1
    workers.wire.close()
    said = (tmp_path / "sofa.log").read_text().splitlines()[-1]
    assert said.startswith("queue sofa is no slot: name it gpu0")
    ended = f"sofa ended with exit code 1: {said[: MAX_LOG_CHARACTERS - 2]} (its log is {tmp_path / 'sofa'}.log)"
    assert ended in (tmp_path / "workers.log").read_text().splitlines()


@pytest.mark.slow
def test_what_is_wrong_before_the_workers_are_told_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their interpreter starts before there is a stack, and has no log in its folder yet."""
    (tmp_path / "celery.py").write_text("raise SystemExit('this is no celery')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(interpreters, "checkout_path", lambda: "")
    (started := Interpreters()).workers.process.wait(600)
    stack = Embedded(tmp_path / "kept", 1, (), interpreters=started)
    with pytest.raises(StackFailed, match=r"^workers ended: this is no celery$"):
        stack.start()
    assert not Path(started.folder).exists()
