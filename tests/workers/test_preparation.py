"""The process for the next chain: of use only while the files that it has read are the same, and gone when dropped."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest
from cluster import TOY
from in_process import InProcess
from test_trainer_host import train, work

from app.registry import TrainerSource
from app.workers.preparation import Preparation
from app.workers.slot.trainer_host import TrainerHost
from app.workers.template import TemplateKey
from app.workers.trainer_connection import Deadline
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm
from stagetree.runtime.commands import Trained
from stagetree.runtime.failures import TrainerFailed

KEY = TemplateKey(None, "small", "{}", 7, "strict", 0, "tree")  # type: ignore[arg-type]
TRAINER = """
import os, time
from stagetree import Trainer
HERE = os.path.dirname(os.path.abspath(__file__))

class Small(Trainer):
    name = "small"
    def __init__(self, *, seed, device):
        self.rate = float(open(os.path.join(HERE, "data.txt")).read())
        {init}
        print("built")
    def setup(self, hp): pass
    def train(self): pass
    def evaluate(self): return {{"rate": self.rate}}
    def state_dict(self): return {{}}
    def load_state_dict(self, state): pass
"""


class Builder:
    """Prepares the trainer of a file. pids: of the processes that have started; has_built: set when one is built."""

    def __init__(self, folder: Path, warm: Warm) -> None:
        self._folder, self._warm = folder, warm
        self.pids, self.has_started, self.has_built = list[int](), Event(), Event()

    def prepare(self, init: str = "pass") -> Preparation:
        (self._folder / "trainer.py").write_text(TRAINER.format(init=init))
        (self._folder / "data.txt").write_text("0.5")
        return Preparation(KEY, self.start, self.build)

    def start(self) -> TrainerProcess:
        process = TrainerProcess.start(self._warm)
        self.pids.append(process.pid)
        self.has_started.set()
        return process

    def build(self, process: TrainerProcess) -> None:
        process.call(Deadline(60.0)).build(file=str(self._folder / "trainer.py"), name="small", args={}, seed=7)
        self.has_built.set()

    @property
    def is_gone(self) -> bool:
        ends = time.monotonic() + 10
        while any(map(psutil.pid_exists, self.pids)) and time.monotonic() < ends:
            time.sleep(0.01)
        return not any(map(psutil.pid_exists, self.pids))


@pytest.fixture
def builder(tmp_path: Path, warm: Warm) -> Builder:
    return Builder(tmp_path, warm)


def test_it_is_taken_with_what_it_has_printed(builder: Builder) -> None:
    taken = builder.prepare().take()
    assert taken is not None
    with taken[0] as process:
        assert taken[1] == b"built\n"
        assert process.call(Deadline(60.0)).evaluate().metrics == {"rate": 0.5}


def test_it_is_of_no_use_where_a_file_that_it_has_read_has_changed(builder: Builder, tmp_path: Path) -> None:
    preparation = builder.prepare()
    assert builder.has_built.wait(30)
    (tmp_path / "data.txt").write_text("0.7")
    assert preparation.take() is None
    assert builder.is_gone


def test_it_is_of_no_use_where_the_build_fails(builder: Builder) -> None:
    assert builder.prepare("raise ValueError('no data')").take() is None
    assert builder.is_gone


def test_it_ends_at_once_when_it_is_dropped(builder: Builder) -> None:
    preparation = builder.prepare("time.sleep(600)")
    assert builder.has_started.wait(30)
    begun = time.monotonic()
    preparation.drop()
    assert time.monotonic() - begun < 10
    assert builder.is_gone


def test_a_process_that_is_dropped_while_it_starts_is_not_waited_for(builder: Builder) -> None:
    may_start = Event()

    def start() -> TrainerProcess:
        may_start.wait(30)
        return builder.start()

    preparation = Preparation(KEY, start, lambda process: pytest.fail("it is not built"))
    preparation.drop()
    may_start.set()
    assert builder.has_started.wait(30)
    assert builder.is_gone


class Roomy(InProcess):
    """It has memory for another one beside it."""

    def train(self, *args: Any, **how: Any) -> Trained:
        step, passed, peak_bytes, _ = super().train(*args, **how)
        return Trained(step, passed, peak_bytes, free_bytes=2**40)


def test_a_lack_of_memory_beside_it_is_an_accident() -> None:
    """The trial would have had enough alone, so it is not failed; then it is trained with nothing beside it."""
    started, fails = list[InProcess](), [False]

    def script(process: InProcess, what: str, step: int) -> None:
        if what == "train" and fails[0]:
            raise TrainerFailed("out_of_memory", "CUDA out of memory")

    def start() -> InProcess:
        started.append(Roomy(script))
        return started[-1]

    host = TrainerHost(start, lambda: {"toy": TrainerSource(TOY, "1")}, 60.0, lambda: 0.0)
    train(host, 0)
    fails[0] = True
    host.begin(work(), 0, lambda point: pytest.fail("nothing is read"), None)
    with pytest.raises(TrainerFailed, match="The next process was beside it") as failed:
        host.train(work(), 2, lambda step: None)
    assert failed.value.kind == "internal" and len(started) == 3
    host.begin(work(), 0, lambda point: pytest.fail("nothing is read"), None)
    with pytest.raises(TrainerFailed) as failed:
        host.train(work(), 2, lambda step: None)
    assert failed.value.kind == "out_of_memory" and len(started) == 4, "none is prepared any more"
