"""Every end of a trainer, its slot or the warm interpreter is noticed, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from moods import SECONDS, Start, Until, are_gone, is_done, moody, train, workers

from app.workers.trainer_connection import Deadline
from app.workers.warm import Warm
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.wire import Wire

# ------------------------------------------------------------------------------------------------ the trainer's process

UNTIDY = """
import atexit, threading, weakref
from stagetree import Trainer

told = open("{folder}/told", "w")
told.write("last words")
kept = open("{folder}/kept", "w")

def say(name):
    with open("{folder}/" + name, "w") as file:
        file.write("done")

def linger():
    threading.main_thread().join()
    say("thread")

class Untidy(Trainer):
    name = "untidy"

    def __init__(self, *, seed, device):
        self.log = kept
        self.log.write("a line")
        atexit.register(say, "atexit")
        weakref.finalize(self, say, "finalize")
        threading.Thread(target=linger).start()
        print("printed", end="")

    def setup(self, hp): ...
    def train(self): ...
    def evaluate(self): return {{}}
    def state_dict(self): return {{}}
    def load_state_dict(self, state): ...
"""


def test_open_files_are_flushed_and_exit_handlers_run(start: Start, deadline: Deadline, tmp_path: Path) -> None:
    """Its process does not end as Python does, which takes all of torch apart."""
    file = tmp_path / "trainer.py"
    file.write_text(UNTIDY.format(folder=tmp_path))
    process = start()
    process.call(deadline).build(file=str(file), name="untidy", args={}, seed=0)
    process.close(patience=SECONDS)
    found = {name: (tmp_path / name).read_text() for name in ("told", "kept", "thread", "atexit", "finalize")}
    assert found == {"told": "last words", "kept": "a line", **dict.fromkeys(("thread", "atexit", "finalize"), "done")}


@pytest.mark.parametrize("mood", ["hang", "hold_the_gil"])
def test_a_silent_trainer_is_ended_and_its_stack_reported(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mood: str
) -> None:
    monkeypatch.setattr("app.workers.trainer_connection.STACK_SECONDS", 1e6)  # it says so at once
    journal, looks = tmp_path / "journal", list[int]()
    process = moody(start(), journal=str(journal))
    train(process, 2)
    deadline = Until(lambda: is_done(journal) and len(looks) > 3)
    with pytest.raises(TrainerFailed, match="nothing was heard") as failed:
        train(process, 9, mood, deadline=deadline, on_progress=looks.append)
    assert (failed.value.kind, failed.value.step) == ("hang", 2)
    assert f"in {mood}\n" in failed.value.error and failed.value.error.endswith(", so it was ended")
    assert set(looks) == {2} and len(looks) > 3  # the slot was not held up
    assert are_gone(process.pid)


@pytest.mark.parametrize(
    ("mood", "seconds", "words"),
    [
        ("leave", SECONDS, "exit code 7"),
        ("crash", SECONDS, r"in crash\n(.|\n)*was ended by signal 11 \(SIGSEGV\)\Z"),
        ("close_all_files", SECONDS, "exit code 1"),
        ("close_all_files_and_hang", 0.1, "closed its connection"),
        ("be_killed", SECONDS, r"signal 9 \(SIGKILL\): the machine may have run out of memory"),
    ],
)
def test_a_crash_is_reported_with_its_reason(
    start: Start, monkeypatch: pytest.MonkeyPatch, mood: str, seconds: float, words: str
) -> None:
    """seconds: how long its end is waited for, once it has closed its connection."""
    monkeypatch.setattr("app.workers.trainer_connection.END_SECONDS", seconds)
    process = moody(start())
    train(process, 2)
    with pytest.raises(TrainerFailed, match=words) as failed:
        train(process, 9, mood)
    assert (failed.value.kind, failed.value.step) == ("crash", 2)
    assert are_gone(process.pid)


def test_a_crash_is_noticed_while_a_child_holds_the_connection(start: Start, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    process = moody(start(), journal=str(journal))
    try:
        with pytest.raises(TrainerFailed, match="SIGKILL") as failed:
            train(process, 1, "leave_one_behind")
    finally:
        os.kill(*workers(journal), signal.SIGKILL)
    assert failed.value.kind == "crash"


def test_a_trainer_that_cannot_start_is_ended(warm: Warm, start: Start) -> None:
    forked = list[tuple[Wire, Wire, int]]()

    class Watched:
        def fork(self) -> tuple[Wire, Wire, int]:
            forked.append(warm.fork())
            return forked[-1]

    with pytest.raises(TrainerFailed, match="finds no GPU"):
        start(Watched(), device="cuda:0", visible_devices="")
    assert are_gone(*(pid for _, _, pid in forked))


@pytest.mark.slow
def test_a_new_end_is_sent_once_to_a_busy_trainer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a message at each look, the connection would be full before the slot sees that the trainer hangs."""
    monkeypatch.setattr("app.workers.trainer_connection.POLL_SECONDS", 0.0)
    with pytest.raises(TrainerFailed, match="last command: train"):
        train(moody(start()), 9, "hold_the_gil", deadline=Deadline(1.0), on_progress=lambda step: 5)


def test_a_trainer_that_reads_no_command_is_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch, deadline: Deadline
) -> None:
    """Stopped, it leaves unread what fills the connection."""
    monkeypatch.setattr("app.workers.trainer_connection.SEND_SECONDS", 0.2)
    process = moody(start())
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(TrainerFailed, match="last command: take the command to train") as failed:
        process.train({"mood": "fine" * 2**22}, 9, deadline=deadline)
    assert failed.value.kind == "hang" and are_gone(process.pid)


def test_a_killed_process_is_noticed_between_two_calls(start: Start, deadline: Deadline) -> None:
    process = moody(start())
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TrainerFailed, match="SIGKILL") as failed:
        process.call(deadline).evaluate()
    assert failed.value.kind == "crash"


def test_slurms_signal_ends_children_of_a_trainer_and_not_the_trainer(start: Start) -> None:
    process = moody(start())
    for pid in (process.pid, psutil.Process(process.pid).ppid()):
        os.kill(pid, signal.SIGTERM)
    assert train(process, 2, "end_a_fork").step == 2
    assert train(moody(start()), 1).step == 1


def test_workers_end_with_their_trainer(start: Start, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    process = moody(start(), workers=2, journal=str(journal))
    with pytest.raises(TrainerFailed, match="nothing was heard"):
        train(process, 1, "hang_with_workers", deadline=Until(lambda: is_done(journal)))
    begun = workers(journal)
    assert len(begun) == 4 and are_gone(process.pid, *begun)


def test_a_process_can_be_ended_while_another_thread_waits_for_it(start: Start) -> None:
    process = moody(start())
    threading.Timer(0.2, process.kill).start()
    with pytest.raises(Exception, match="on purpose"):
        train(process, 9, "hang")
    assert are_gone(process.pid)


def test_a_closed_process_never_signals_its_old_id(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = list[tuple[int, int]]()
    monkeypatch.setattr(os, "killpg", lambda *signal: signals.append(signal))
    process = moody(start())
    process.close()
    assert not psutil.pid_exists(process.pid)
    process.close()
    process.kill()
    assert not signals


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
