"""A template: which trainers can have one, and that a fork of it is what a process is that builds for itself."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from moods import PATIENT, Start, are_gone

from app.workers.template import Fork, Template, TemplateKey, Templates
from app.workers.trainer_process import TrainerProcess
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.template import FORKS_BEFORE_GATHERING, TemplateRole

HEAD = """
import itertools, multiprocessing, os, random, socket, subprocess, sys, tempfile, threading
import numpy as np
import torch
from stagetree import Trainer
HERE = os.path.dirname(os.path.abspath(__file__))
"""
TRAINER = """
class Small(Trainer):
    name = "small"
    def __init__(self, *, seed, device):
        super().__init__(seed=seed, device=device)
        self.drawn = [random.random(), float(np.random.rand()), float(torch.rand(())), hash("order")]
        self.steps, self.kept = 0, None
        print("built")
        {init}
    def setup(self, hp): pass
    def train(self):
        self.drawn += [random.random(), float(np.random.rand()), float(torch.rand(()))]
        self.steps += 1
        {step}
    def evaluate(self): return {{"drawn": sum(self.drawn), "seen": float(self.steps)}}
    def state_dict(self): return {{"drawn": list(self.drawn), "steps": self.steps}}
    def load_state_dict(self, state):
        self.drawn, self.steps = list(state["drawn"]), state["steps"]
        self.drawn.append(random.random() + float(np.random.rand()) + float(torch.rand(())))
"""


def write_trainer(folder: Path, init: str = "pass", step: str = "pass", head: str = "") -> str:
    path = folder / "trainer.py"
    path.write_text(HEAD + head + TRAINER.format(init=init, step=step))
    (folder / "data.txt").write_text("1\n2\n3\n")
    np_file = folder / "data.bin"
    np_file.write_bytes(bytes(64))
    return str(path)


def build_template(process: TrainerProcess, path: str) -> TrainerProcess:
    process.call(PATIENT).build(file=path, name="small", args={}, seed=7)
    return process


def make_template(start: Start, folder: Path, **how: str) -> TrainerProcess:
    """A process that forks are made of. how: parts of its trainer; see `write_trainer`."""
    template = build_template(start(), write_trainer(folder, **how))
    template.call(PATIENT).become_template(fds=[2])
    return template


@pytest.fixture
def forks() -> Iterator[list[Fork]]:
    made: list[Fork] = []
    yield made
    for each in made:
        each.close()


def run_fork(template: TrainerProcess, forks: list[Fork], printed: bytes = b"") -> Fork:
    forks.append(Fork.from_template(Template(template, printed, []), template.request_fork()))
    return forks[-1]


def values(process: TrainerProcess, until: int) -> Any:
    process.train({}, until, deadline=PATIENT)
    return process.call(PATIENT).evaluate().metrics


UNSAFE = {
    "self.kept = threading.Thread(target=threading.Event().wait, daemon=True); self.kept.start()": "started 1 thread",
    "self.kept = open(os.path.join(HERE, 'data.txt'))": "has opened .*data.txt",
    "self.kept = os.open(os.path.join(HERE, 'data.txt'), os.O_RDONLY)": "has opened .*data.txt",
    "self.kept = socket.socketpair()": "has opened socket",
    "self.kept = multiprocessing.Value('d', 1.0)": "has made /.*, a temporary file",
    "import mmap; self.kept = mmap.mmap(-1, 4096)": "has mapped .* to be shared and written",
    "self.kept = np.memmap(os.path.join(HERE, 'data.bin'), mode='r+')": "has mapped .*data.bin to be shared",
    "self.kept = torch.zeros(3).share_memory_()": "to be shared and written",
    "self.kept = subprocess.Popen(['sleep', '600'])": "has started a process",
    "self.kept = tempfile.mkdtemp(dir=HERE)": "a temporary file or folder",
}


@pytest.mark.parametrize("init", UNSAFE)
def test_shared_resources_prevent_a_template(start: Start, tmp_path: Path, init: str) -> None:
    process = build_template(start(), write_trainer(tmp_path, init))
    unsafe, files = process.call(PATIENT).become_template(fds=[2])
    assert unsafe and not files
    assert re.search(UNSAFE[init], unsafe), unsafe
    assert values(process, 2)["seen"] == 2.0, "the process itself trains as ever"


@pytest.mark.parametrize(
    "init",
    [
        "self.kept = np.memmap(os.path.join(HERE, 'data.bin'), mode='r')",
        "self.kept = open(os.path.join(HERE, 'data.txt')).read()",
        "self.kept = torch.nn.Linear(8, 8)(torch.rand(4, 8)).sum().backward()",
        "self.kept = torch.utils.data.DataLoader(list(range(8)), num_workers=2)",
    ],
)
def test_read_only_data_allows_a_template(start: Start, tmp_path: Path, init: str) -> None:
    unsafe, files = build_template(start(), write_trainer(tmp_path, init)).call(PATIENT).become_template(fds=[2])
    assert not unsafe
    assert [Path(each).name for each in files] in ([], ["data.bin"], ["data.txt"])


def test_a_fork_equals_a_process_that_builds_itself(start: Start, tmp_path: Path, forks: list[Fork]) -> None:
    path = write_trainer(tmp_path)
    alone, template = build_template(start(), path), build_template(start(), path)
    template.call(PATIENT).become_template(fds=[2])
    first, second = run_fork(template, forks), run_fork(template, forks)
    expected = values(alone, 4)
    assert values(first, 4) == values(second, 4) == expected
    with closing(alone.save(deadline=PATIENT)) as state:
        again, other = run_fork(template, forks), build_template(start(), path)
        for each in (again, other):  # what loading draws comes out of the generators as the build has left them
            each.call(PATIENT).load(fds=state.lend(), hp={}, step=4)
        assert values(again, 6) == values(other, 6)


@pytest.mark.parametrize("count", [0, 1, *(FORKS_BEFORE_GATHERING + more for more in (-1, 0, 5))])
def test_memory_is_moved_into_large_pages_once_forks_have_cost_as_much(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """It was moved before the first fork, which waited half a second for that."""
    gathered, role = list[int](), TemplateRole()
    for number in range(1, count + 1):
        monkeypatch.setattr("stagetree.runtime.template.gather_memory", lambda number=number: gathered.append(number))
        role.note_fork()
    assert gathered == [FORKS_BEFORE_GATHERING][: count >= FORKS_BEFORE_GATHERING]


def test_forks_do_not_affect_each_other(start: Start, tmp_path: Path, forks: list[Fork]) -> None:
    head = "SCALES = itertools.cycle([0.2, 0.7, 1.3])\n"
    template = make_template(start, tmp_path, step="self.drawn.append(next(SCALES))", head=head)
    assert len({values(run_fork(template, forks), 2)["drawn"] for _ in range(3)}) == 1


def test_a_killed_fork_leaves_its_template_usable(start: Start, tmp_path: Path, forks: list[Fork]) -> None:
    template = make_template(start, tmp_path)
    first = run_fork(template, forks)
    first.kill()
    assert are_gone(first.pid)
    assert values(run_fork(template, forks), 3)["seen"] == 3.0


def test_forks_end_with_their_template(start: Start, tmp_path: Path, forks: list[Fork]) -> None:
    template = make_template(start, tmp_path)
    first = run_fork(template, forks)
    psutil.Process(template.pid).kill()
    assert are_gone(first.pid)
    with pytest.raises(TrainerFailed, match="the interpreter that it was forked from has ended"):
        values(first, 3)


def test_a_fork_survives_a_signal_to_the_workers_group(start: Start, tmp_path: Path, forks: list[Fork]) -> None:
    template = make_template(start, tmp_path)
    first = run_fork(template, forks)
    assert values(first, 1)["seen"] == 1.0
    for process in (first, template):
        os.kill(process.pid, signal.SIGTERM)
    assert values(first, 2)["seen"] == 2.0
    assert values(run_fork(template, forks), 2)["seen"] == 2.0


@pytest.mark.parametrize(
    "step", ["pass", "self.kept = self.kept or open(os.path.join(HERE, 'out.txt'), 'w'); self.kept.write('x')"]
)
def test_a_fork_flushes_its_files(start: Start, tmp_path: Path, forks: list[Fork], step: str) -> None:
    template = make_template(start, tmp_path, step=step)
    values(run_fork(template, forks), 3)
    forks[-1].close()
    out = tmp_path / "out.txt"
    assert (out.read_text() if out.exists() else "") == ("" if step == "pass" else "xxx")


def test_the_next_fork_is_made_while_one_trains_and_ends_with_its_template(
    start: Start, tmp_path: Path, forks: list[Fork]
) -> None:
    process = make_template(start, tmp_path)
    template = Template(process, b"", [])
    forks += [template.fork(), template.fork()]
    assert values(forks[0], 3) == values(forks[1], 3)
    of_template, ends = list[psutil.Process](), time.monotonic() + 10
    while len(of_template) != 3 and time.monotonic() < ends:  # the two, and the next one, which may take a moment
        of_template = psutil.Process(process.pid).children()
    assert len(of_template) == 3
    template.close()
    assert all(are_gone(each.pid) for each in of_template)


def test_a_hanging_fork_is_killed_while_the_next_one_trains(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.workers.template.CLOSE_SECONDS", 0.5)
    wait = (
        "self.kept = self.kept or threading.Thread(target=threading.Event().wait); self.kept.ident or self.kept.start()"
    )
    process, templates = make_template(start, tmp_path, step=wait), Templates()
    fork = Template(process, b"", []).fork()
    values(fork, 1)
    begun = time.monotonic()
    templates.end(fork)
    assert time.monotonic() - begun < 0.4, "the next chain does not wait for it"
    while psutil.pid_exists(fork.pid) and time.monotonic() - begun < 10:
        templates.kill_late_fork()
        time.sleep(0.01)
    assert 0.4 < time.monotonic() - begun < 5
    templates.close()


def test_a_template_is_rebuilt_after_its_death_or_a_change_of_data(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    init = "self.drawn.append(float(open(os.path.join(HERE, 'data.txt')).readline()))"
    path, templates = write_trainer(tmp_path, init), Templates()
    key = TemplateKey(source=None, trainer="small", args="{}", seed=7, determinism="strict", shards=0, parallel="tree")  # type: ignore[arg-type]

    def add() -> TrainerProcess:
        process = build_template(start(), path)
        _, files = process.call(PATIENT).become_template(fds=[2])
        templates.add(key, process, b"built\n", files)
        return process

    assert templates.fork(key) is None
    process = add()
    fork = templates.fork(key)
    assert fork is not None and fork.printed == b"built\n"
    fork.close()
    (tmp_path / "data.txt").write_text("5.5\n")
    assert templates.fork(key) is None
    assert are_gone(process.pid)
    process = add()
    psutil.Process(process.pid).kill()
    assert are_gone(process.pid)
    assert templates.fork(key) is None
    assert "the template of trainer 'small' is built again" in caplog.text
    templates.close()
