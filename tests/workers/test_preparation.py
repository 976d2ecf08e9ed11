"""The process for the next chain: of use only while the files that it has read are the same, and gone when dropped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import psutil
import pytest
from cluster import TOY
from in_process import InProcess
from test_trainer_host import work

from app.registry import TrainerSource
from app.workers.preparation import Preparation
from app.workers.slot.trainer_host import TrainerHost
from app.workers.template import TemplateKey
from app.workers.trainer_connection import Deadline
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm
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


@pytest.fixture
def prepare(warm: Warm, tmp_path: Path) -> Callable[[str], Preparation]:
    def made(init: str) -> Preparation:
        path = tmp_path / "trainer.py"
        path.write_text(TRAINER.format(init=init))
        (tmp_path / "data.txt").write_text("0.5")

        def build(process: TrainerProcess) -> None:
            process.build(str(path), "small", {}, 7, deadline=Deadline(60.0))

        return Preparation(KEY, lambda: TrainerProcess.start(warm), build)

    return made


def pid_of(preparation: Preparation) -> int:
    ends = time.monotonic() + 30
    while preparation._process is None and time.monotonic() < ends:
        time.sleep(0.005)
    assert preparation._process is not None
    return preparation._process.pid


def test_it_is_taken_with_what_it_has_printed(prepare: Callable[[str], Preparation]) -> None:
    taken = prepare("pass").take()
    assert taken is not None
    with taken[0] as process:
        assert taken[1] == b"built\n"
        assert process.evaluate(deadline=Deadline(60.0)) == {"rate": 0.5}


def test_it_is_of_no_use_where_a_file_that_it_has_read_has_changed(
    prepare: Callable[[str], Preparation], tmp_path: Path
) -> None:
    preparation = prepare("pass")
    preparation._task.join()
    (tmp_path / "data.txt").write_text("0.7")
    pid = pid_of(preparation)
    assert preparation.take() is None
    assert not psutil.pid_exists(pid)


def test_it_is_of_no_use_where_the_build_fails(prepare: Callable[[str], Preparation]) -> None:
    assert prepare("raise ValueError('no data')").take() is None


def test_it_ends_at_once_when_it_is_dropped(prepare: Callable[[str], Preparation]) -> None:
    preparation = prepare("time.sleep(600)")
    pid, begun = pid_of(preparation), time.monotonic()
    preparation.drop()
    assert time.monotonic() - begun < 10
    assert not psutil.pid_exists(pid)


def test_a_lack_of_memory_beside_it_is_an_accident(
    prepare: Callable[[str], Preparation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial would have had enough alone: it is not failed, and nothing is prepared for that trainer any more."""

    def script(process: InProcess, what: str, step: int) -> None:
        if what == "train":
            raise TrainerFailed("out_of_memory", "CUDA out of memory")

    host = TrainerHost(lambda: InProcess(script), lambda: {"toy": TrainerSource(TOY, "1")}, 60.0, lambda: 0.0)
    chain = work()
    host.begin(chain, 0, lambda point: pytest.fail("nothing is read"), None)
    host._preparation = prepare("pass")
    with pytest.raises(TrainerFailed, match="The next process was beside it") as failed:
        host.train(chain, 2, lambda step: None)
    assert failed.value.kind == "internal"
    assert host._preparation is None and host._has_room == {KEY: False}


def test_a_process_that_is_dropped_while_it_starts_is_not_waited_for(warm: Warm) -> None:
    may_start, started = Event(), list[TrainerProcess]()

    def start() -> TrainerProcess:
        may_start.wait(30)
        started.append(TrainerProcess.start(warm))
        return started[0]

    preparation = Preparation(KEY, start, lambda process: pytest.fail("it is not built"))
    preparation.drop()
    may_start.set()
    preparation._task.join()
    assert not psutil.pid_exists(started[0].pid)
