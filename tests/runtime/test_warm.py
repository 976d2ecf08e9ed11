"""The warm interpreter: it serves all slots of a machine, is started again, and is never waited for for ever."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from moods import SECONDS, Start, are_gone, interpreter_of, moody, train, workers
from opened import open_files
from stacks import wait_for

from app.workers import warm as warm_module
from app.workers.trainer_connection import Deadline
from app.workers.warm import Warm, WarmFailed
from stagetree.runtime.failures import TrainerFailed, format_error, keep_for_trainers, mask_secrets, plain
from stagetree.runtime.loading import PACKAGES
from stagetree.runtime.warm import TOLD, launch
from stagetree.runtime.wire import Wire, pair


@pytest.fixture
def own() -> Warm:
    return Warm()


def test_the_warm_interpreter_has_one_thread_and_nothing_of_the_service(warm: Warm, start: Start) -> None:
    interpreter = interpreter_of(start())
    assert interpreter.num_threads() == 1
    assert not any("libcuda.so" in region.path for region in interpreter.memory_maps())


@pytest.mark.slow
def test_common_libraries_that_trainers_name_are_imported_once(start: Start, tmp_path: Path) -> None:
    """Each process took a second or two for them."""
    (tmp_path / "trainer.py").write_text(
        "def make():\n    import torchvision\n    from sklearn.datasets import load_digits\n"
    )
    warm = Warm(files=[str(tmp_path / "trainer.py"), str(tmp_path / "gone.py")])
    interpreter = interpreter_of(start(warm))
    mapped = {name for region in interpreter.memory_maps() for name in PACKAGES if f"/{name}/" in region.path}
    assert mapped >= {"sklearn", "scipy"}
    assert interpreter.num_threads() == 1
    assert not any("libcuda.so" in region.path for region in interpreter.memory_maps())
    warm.close()


@pytest.mark.slow
def test_a_users_module_beside_the_trainer_takes_precedence(start: Start, tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("import sklearn\nfrom . import scipy\n")
    (tmp_path / "sklearn.py").write_text("")
    warm = Warm(files=[str(tmp_path / "trainer.py")])
    assert not any("/sklearn/" in region.path for region in interpreter_of(start(warm)).memory_maps())
    warm.close()


@pytest.mark.slow
def test_a_dead_interpreter_ends_its_trainers_and_is_replaced(
    start: Start, own: Warm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tmp_path / "journal"
    process = moody(start(own), journal=str(journal))
    interpreter = interpreter_of(process)

    def kill(step: int) -> None:
        if journal.exists() and workers(journal):
            interpreter.kill()

    with pytest.raises(TrainerFailed, match="the interpreter that it was forked from has ended") as failed:
        train(process, 1, "hang_with_another", on_progress=kill)
    assert failed.value.kind == "internal"
    process.close()
    assert are_gone(process.pid, *workers(journal))
    assert train(moody(start(own)), 1).step == 1
    assert [message.partition(":")[0] for message in caplog.messages] == ["the warm interpreter is started again"]
    own.close()


@pytest.mark.slow
def test_trainers_end_even_if_the_interpreter_hangs(start: Start, own: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workers.trainer_connection.KILL_SECONDS", 0.1)
    process = start(own)
    interpreter = interpreter_of(process)
    interpreter.suspend()
    try:
        process.kill()
        assert are_gone(process.pid)
    finally:
        interpreter.resume()
    own.close()


@pytest.mark.slow
def test_one_interpreter_serves_all_slots_of_a_machine(start: Start, tmp_path: Path) -> None:
    interpreter, owner = launch(str(tmp_path / "warm"))
    slots = [Warm(str(tmp_path / "warm")) for _ in range(2)]
    processes = [moody(start(slot)) for slot in slots]
    assert {interpreter_of(process).pid for process in processes} == {interpreter.pid}
    interpreter.kill()
    interpreter.wait(SECONDS)
    assert train(moody(start(slots[0])), 1).step == 1  # a slot that has none left helps itself
    for slot in slots:
        slot.close()
    owner.close()


@pytest.mark.slow
def test_an_interpreter_ends_with_its_owner_but_not_before_the_trainers(start: Start, tmp_path: Path) -> None:
    interpreter, owner = launch(str(tmp_path / "warm"))
    process = moody(start(Warm(str(tmp_path / "warm"))))
    owner.close()
    assert train(process, 1).step == 1
    process.close()
    assert interpreter.wait(SECONDS) == 0


@pytest.mark.slow
def test_the_trainers_of_an_interpreter_may_be_sent_later(start: Start, tmp_path: Path) -> None:
    """It imports torch meanwhile, and prints it into the log that it gets later."""
    (tmp_path / "trainer.py").write_text("def make():\n    from sklearn.datasets import load_digits\n")
    with (tmp_path / "early").open("a+b") as early, (tmp_path / "log").open("ab") as log:
        interpreter, owner = launch(str(tmp_path / "warm"), early, [TOLD], env={"PYTHONVERBOSE": "1"})
        wait_for("its first imports", lambda: (tmp_path / "early").stat().st_size > 0)
        Wire(owner).send({"files": [str(tmp_path / "trainer.py")]}, log.fileno())
    process = interpreter_of(moody(start(Warm(str(tmp_path / "warm")))))
    assert process.pid == interpreter.pid
    assert any("/sklearn/" in region.path for region in process.memory_maps())
    said = (tmp_path / "log").read_text()
    assert "import 'site'" in said
    assert "sklearn" in said
    interpreter.kill()
    owner.close()


@pytest.mark.slow
def test_an_interpreter_without_trainers_ends_with_its_owner(tmp_path: Path) -> None:
    interpreter, owner = launch(str(tmp_path / "warm"), files=[TOLD])
    owner.close()
    assert interpreter.wait(SECONDS) == 1


def files_of(*pids: int) -> list[int]:
    return [psutil.Process(pid).num_fds() for pid in pids]


@pytest.mark.slow
def test_no_descriptor_stays_open(start: Start, deadline: Deadline) -> None:
    process = moody(start())
    everyone = [os.getpid(), process.pid, interpreter_of(process).pid]

    def use() -> None:
        train(process, process.step + 1)
        with moody(start(), workers=1) as other:
            state = process.save(deadline=deadline)
            other.call(deadline).load(fds=state.lend(), hp={"mood": "fine"}, step=process.step)
            assert len(state.view()) == state.size
            state.close()

    use()
    before = files_of(*everyone)
    for _ in range(3):
        use()
    gc.collect()
    ends = time.monotonic() + SECONDS  # the interpreter closes a lifeline a moment after its last word on it
    while any(now > then for now, then in zip(files_of(*everyone), before, strict=True)):
        assert time.monotonic() < ends, (before, files_of(*everyone))
        time.sleep(0.01)


@pytest.mark.slow
def test_a_failed_start_is_reported_and_retried(monkeypatch: pytest.MonkeyPatch, start: Start, own: Warm) -> None:
    with monkeypatch.context() as environment:
        environment.setenv("PYTHONPATH", str(Path(__file__).parent / "no_torch"))
        with pytest.raises(WarmFailed, match="cannot be started: ImportError: torch is broken here"):
            own.fork()
    start(own).close()
    own.close()


def test_an_interpreter_that_dies_at_start_is_tried_twice_and_reported(
    monkeypatch: pytest.MonkeyPatch, own: Warm
) -> None:
    started = list[int]()

    def launch_dead(files: object) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = pair()
        theirs.close()
        started.append(1)
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]), ours

    monkeypatch.setattr(warm_module, "launch", launch_dead)
    monkeypatch.setattr(warm_module, "END_SECONDS", SECONDS)
    with pytest.raises(WarmFailed, match="cannot be started: it ended with exit code 3"):
        own.fork()
    assert len(started) == 2


def test_the_wait_for_a_silent_interpreter_is_bounded(monkeypatch: pytest.MonkeyPatch, own: Warm) -> None:
    monkeypatch.setattr(warm_module, "END_SECONDS", 0.01)
    started = list[subprocess.Popen[bytes]]()

    def launch_silent(files: object) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = pair()
        theirs.close()
        started.append(subprocess.Popen(["sleep", "60"]))
        return started[-1], ours

    monkeypatch.setattr(warm_module, "launch", launch_silent)
    with pytest.raises(WarmFailed, match=r"cannot be started: .*Broken pipe"):
        own.fork()
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_processes_may_end_and_be_closed_at_the_same_moment(warm: Warm, start: Start) -> None:
    interpreter = interpreter_of(start())
    for _ in range(100):
        process = start()
        os.kill(process.pid, signal.SIGKILL)
        process.kill()
        process.close()
    assert interpreter_of(start()) == interpreter


FULL = """
import os, sys
from stagetree.runtime import warm

def fork():
    raise OSError(11, "Resource temporarily unavailable")

os.fork = fork
warm.MODULES = ()
sys.exit(warm.main())
"""


@pytest.mark.slow
def test_a_failed_fork_is_reported_and_the_interpreter_survives(monkeypatch: pytest.MonkeyPatch, own: Warm) -> None:
    def launch_full(files: object) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = pair()
        with theirs:
            command = [sys.executable, "-P", "-c", FULL, str(theirs.fileno())]
            return subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL), ours

    monkeypatch.setattr(warm_module, "launch", launch_full)
    for _ in range(2):
        with pytest.raises(WarmFailed, match="no process can be forked: Resource temporarily unavailable"):
            own.fork()
    own.close()


def test_the_wait_for_a_starting_interpreter_is_bounded(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> None:
    monkeypatch.setattr(warm_module, "START_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(str(short_folder / "deaf"))
        deaf.listen()
        before = open_files()
        with pytest.raises(WarmFailed, match="was not ready after"):
            Warm(str(short_folder / "deaf")).fork()
        assert not open_files() - before


def test_an_interpreter_that_closes_each_connection_is_reported(short_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(short_folder / "rude"))
        listener.listen()

        def hang_up() -> None:
            for _ in range(2):
                listener.accept()[0].close()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(hang_up)
            with pytest.raises(WarmFailed, match=r"cannot be started: (.*Broken pipe|the other process closed)"):
                Warm(str(short_folder / "rude")).fork()


def test_trainers_get_no_settings_of_the_service() -> None:
    """A trainer's error that quoted its environment showed the database's password to all who may look."""
    given = {"PATH": "/bin", "STAGETREE_DATABASE_URL": "postgresql://u:secret@db/x", "HF_TOKEN": "t", "DATA": "/data"}
    found = {**given, "STAGETREE_STACK": "/tmp/stagetree-x"}  # by which the next stack finds its remains
    keep_for_trainers(found)
    assert found == {"PATH": "/bin", "HF_TOKEN": "t", "DATA": "/data", "STAGETREE_STACK": "/tmp/stagetree-x"}
    found = {**given, "STAGETREE_TRAINER_ENV": "HF_*, NONE"}
    keep_for_trainers(found)
    assert found == {"PATH": "/bin", "HF_TOKEN": "t"}


def test_secrets_of_the_environment_are_masked_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "sk-VERYSECRET")
    monkeypatch.setenv("MIRROR", "https://me:hunter22@mirror/x")
    monkeypatch.setenv("KEYBOARD", "us")
    try:
        raise ValueError(f"no us here: {dict(os.environ)}")
    except ValueError as error:
        text = format_error(error)
    assert "sk-VERYSECRET" not in text and "hunter22" not in text
    assert "no us here" in text and "WANDB_API_KEY" in text and "***" in text


LISTINGS = ("{}={}", "export {}='{}'", "environ({{'A': '1', '{}': '{}', 'B': '2'}})", '{{"{}": "{}"}}', "('{}', '{}')")


@pytest.mark.parametrize("value", ["nothing", "a", "0", "x.y", "p(w"])
@pytest.mark.parametrize("listing", LISTINGS)
def test_a_short_secret_is_masked_beside_its_name(listing: str, value: str) -> None:
    """`AWS_SECRET_ACCESS_KEY=nothing` was shown, since its value is short."""
    text = listing.format("AWS_SECRET_ACCESS_KEY", value)
    masked = mask_secrets(text, {"AWS_SECRET_ACCESS_KEY": value, "A": "1"})
    assert masked == listing.format("AWS_SECRET_ACCESS_KEY", "***")


@pytest.mark.parametrize(
    ("value", "text", "masked"),
    [
        ("hunter2", "no hunter2 here", "no *** here"),
        ("hunter2", "hunter22 is another word", "hunter22 is another word"),
        ("false", "the loss is false", "the loss is false"),
        ("100000", "at step 100000", "at step 100000"),
        ("a", "a word", "a word"),
        ("", "TOKEN= and others", "TOKEN= and others"),
        ("longsecret", "xlongsecretx", "x***x"),
    ],
)
def test_a_short_secret_garbles_no_other_text(value: str, text: str, masked: str) -> None:
    assert mask_secrets(text, {"TOKEN": value}) == masked


def test_a_secret_that_is_set_later_is_masked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets are collected once for each environment, not once for a process."""
    before = plain("loss of sk-LATERSECRET")
    monkeypatch.setenv("WANDB_API_KEY", "sk-LATERSECRET")
    assert (before, plain("loss of sk-LATERSECRET")) == ("loss of sk-LATERSECRET", "loss of ***")
