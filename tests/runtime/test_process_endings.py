"""However a trainer, its slot or the warm interpreter ends, somebody hears of it and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from moods import Start, moody, train

from app.workers import warm as warm_module
from app.workers.deadline import Deadline
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm, WarmFailed
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.warm import launch
from stagetree.runtime.wire import pair

SECONDS = 30.0
"""How long to wait for what happens in milliseconds on an idle machine."""


def are_gone(*pids: int) -> bool:
    """Whether all of them have ended, or do soon."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    ends = time.monotonic() + SECONDS
    while any(_runs(process) for process in processes) and time.monotonic() < ends:
        psutil.wait_procs(processes, timeout=0.1)
    return not any(_runs(process) for process in processes)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def workers(journal: Path) -> list[int]:
    """The workers of a trainer, once it has written them all down."""
    ends = time.monotonic() + SECONDS
    while not journal.exists() or not journal.read_text().endswith("done\n"):
        assert time.monotonic() < ends, "the trainer did not begin"
        time.sleep(0.01)
    return [int(line) for line in journal.read_text().split()[:-1]]


# ------------------------------------------------------------------------------------------------ the trainer's process


@pytest.mark.parametrize("mood", ["hang", "hold_the_gil"])
def test_who_is_silent_for_too_long_is_ended_and_it_is_said_where_it_was(start: Start, mood: str) -> None:
    process = moody(start())
    train(process, 2)
    looks: list[int] = []
    with pytest.raises(TrainerFailed, match="nothing was heard") as failed:
        train(process, 9, mood, deadline=Deadline(1.0, longest=0.01), on_progress=looks.append)
    assert (failed.value.kind, failed.value.step) == ("hang", 2)
    assert f"in {mood}\n" in failed.value.error and failed.value.error.endswith(", so it was ended")
    assert set(looks) == {2} and len(looks) > 3  # the slot was not held up
    assert are_gone(process.pid)


@pytest.mark.parametrize(
    ("mood", "words"),
    [
        ("leave", "exit code 7"),
        ("crash", r"in crash\n(.|\n)*was ended by signal 11 \(SIGSEGV\)\Z"),
        ("close_all_files", "exit code 1"),
        ("close_all_files_and_hang", "closed its connection"),
        ("be_killed", r"signal 9 \(SIGKILL\): the machine may have run out of memory"),
    ],
)
def test_a_crash_is_told_with_its_reason(start: Start, mood: str, words: str) -> None:
    process = moody(start())
    train(process, 2)
    with pytest.raises(TrainerFailed, match=words) as failed:
        train(process, 9, mood)
    assert (failed.value.kind, failed.value.step) == ("crash", 2)
    assert are_gone(process.pid)


def test_who_takes_no_command_is_ended(start: Start, monkeypatch: pytest.MonkeyPatch, deadline: Deadline) -> None:
    """Stopped, it leaves unread what fills the connection."""
    monkeypatch.setattr("app.workers.trainer_connection.SEND_SECONDS", 0.2)
    process = moody(start())
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(TrainerFailed, match="last command: take the command to train") as failed:
        process.train({"mood": "fine" * 2**22}, 9, deadline=deadline)
    assert failed.value.kind == "hang" and are_gone(process.pid)


def test_a_process_killed_from_outside_is_missed_between_two_calls(start: Start, deadline: Deadline) -> None:
    process = moody(start())
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TrainerFailed, match="SIGKILL") as failed:
        process.evaluate(deadline=deadline)
    assert failed.value.kind == "crash"


def test_the_signal_that_slurm_sends_to_all_ends_no_trainer_but_what_it_started(start: Start) -> None:
    process = moody(start())
    for pid in (process.pid, psutil.Process(process.pid).ppid()):
        os.kill(pid, signal.SIGTERM)
    assert train(process, 2, "end_a_fork").step == 2
    assert train(moody(start()), 1).step == 1


def test_workers_of_a_trainer_end_with_it(start: Start, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    process = moody(start(), workers=2, journal=str(journal))
    with pytest.raises(TrainerFailed, match="nothing was heard"):
        train(process, 1, "hang_with_workers", deadline=Deadline(2.0))
    begun = workers(journal)
    assert len(begun) == 4 and are_gone(process.pid, *begun)


def test_another_thread_can_end_a_process_that_is_waited_for(start: Start) -> None:
    process = moody(start())
    threading.Timer(0.2, process.kill).start()
    with pytest.raises(Exception, match="on purpose"):
        train(process, 9, "hang")
    assert are_gone(process.pid)


def test_a_closed_process_is_gone_and_may_be_closed_again(start: Start) -> None:
    process = moody(start())
    process.close()
    assert not psutil.pid_exists(process.pid)
    process.close()


# ------------------------------------------------------------------------------------------------- the slot's process


def test_a_trainer_ends_with_its_slot_and_so_do_its_workers(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    command = [sys.executable, str(Path(__file__).parent / "owner.py"), str(journal)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        trainer = int(owner.stdout.readline())
        begun = workers(journal)
        interpreter = psutil.Process(trainer).ppid()
        owner.kill()
    assert len(begun) == 4 and are_gone(trainer, interpreter, *begun)


# ------------------------------------------------------------------------------------------------- the warm interpreter


@pytest.fixture
def own() -> Warm:
    return Warm()


def interpreter_of(process: TrainerProcess) -> psutil.Process:
    return psutil.Process(psutil.Process(process.pid).ppid())


def test_the_warm_interpreter_has_one_thread_and_nothing_of_the_service(warm: Warm, start: Start) -> None:
    interpreter = interpreter_of(start())
    assert interpreter.num_threads() == 1
    assert not any("libcuda.so" in region.path for region in interpreter.memory_maps())


def test_a_dead_interpreter_takes_its_trainers_along_and_another_one_is_started(start: Start, own: Warm) -> None:
    process = moody(start(own))
    interpreter_of(process).kill()
    with pytest.raises(TrainerFailed, match="the interpreter that it was forked from has ended") as failed:
        train(process, 1, "hang")
    assert failed.value.kind == "internal" and are_gone(process.pid)
    assert train(moody(start(own)), 1).step == 1
    own.close()


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


def test_an_interpreter_ends_with_its_owner_but_not_before_the_trainers(start: Start, tmp_path: Path) -> None:
    interpreter, owner = launch(str(tmp_path / "warm"))
    process = moody(start(Warm(str(tmp_path / "warm"))))
    owner.close()
    assert train(process, 1).step == 1
    process.close()
    assert interpreter.wait(SECONDS) == 0


def files_of(*pids: int) -> list[int]:
    return [psutil.Process(pid).num_fds() for pid in pids]


def test_nothing_is_left_open_anywhere(start: Start, deadline: Deadline) -> None:
    process = moody(start())
    everyone = [os.getpid(), process.pid, interpreter_of(process).pid]

    def use() -> None:
        train(process, process.step + 1)
        with moody(start(), workers=1) as other:
            state = process.save(deadline=deadline)
            other.load(state, {"mood": "fine"}, process.step, deadline=deadline)
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


def test_an_interpreter_that_cannot_be_started_says_why_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, start: Start, own: Warm
) -> None:
    with monkeypatch.context() as environment:
        environment.setenv("PYTHONPATH", str(Path(__file__).parent / "no_torch"))
        with pytest.raises(WarmFailed, match="cannot be started: ImportError: torch is broken here"):
            own.fork()
    start(own).close()
    own.close()


def test_an_interpreter_that_ends_each_time_is_started_twice_and_its_end_is_said(
    monkeypatch: pytest.MonkeyPatch, own: Warm
) -> None:
    started = list[int]()

    def launch_dead() -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = pair()
        theirs.close()
        started.append(1)
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]), ours

    monkeypatch.setattr(warm_module, "launch", launch_dead)
    with pytest.raises(WarmFailed, match="cannot be started: it ended with exit code 3"):
        own.fork()
    assert len(started) == 2
    own.close()


def test_processes_may_end_and_be_let_go_at_the_same_moment(warm: Warm, start: Start) -> None:
    interpreter = interpreter_of(start())
    for _ in range(100):
        process = start()
        os.kill(process.pid, signal.SIGKILL)
        process.kill()
    assert interpreter_of(start()) == interpreter


FULL = """
import os, sys
from stagetree.runtime import warm

def fork():
    raise OSError(11, "Resource temporarily unavailable")

os.fork = fork
sys.exit(warm.main())
"""


def test_a_machine_that_is_full_is_said_and_the_interpreter_goes_on(monkeypatch: pytest.MonkeyPatch, own: Warm) -> None:
    def launch_full() -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = pair()
        with theirs:
            command = [sys.executable, "-P", "-c", FULL, str(theirs.fileno())]
            return subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL), ours

    monkeypatch.setattr(warm_module, "launch", launch_full)
    for _ in range(2):
        with pytest.raises(WarmFailed, match="no process can be forked: Resource temporarily unavailable"):
            own.fork()
    own.close()


def test_an_interpreter_that_is_not_ready_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(warm_module, "START_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        deaf.listen()
        with pytest.raises(WarmFailed, match="was not ready after"):
            Warm(str(tmp_path / "deaf")).fork()
