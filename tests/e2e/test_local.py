"""A service of a program's own, from scripts and from notebooks."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from stacks import PATIENCE, ROOT, TOYS, wait_for
from toys import trials

import stagetree
from app.domain.search_plan import MAX_LOST
from stagetree.errors import StagetreeError, Unreachable

TRAINER = """
from stagetree import Trainer

class Count(Trainer):
    name = "count"

    def __init__(self, *, seed, device):
        self.n = 0

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self):
        self.n += self.lr

    def evaluate(self):
        return {"n": self.n}

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]
"""
STUDY = 'metric="n", mode="max", space={"lr": [1, 2]}, tuner={"kind": "grid", "max_steps": 3}'
SCRIPT = f"""
import stagetree
{TRAINER}
print("once")
for _ in range(2):
    with stagetree.local(slots=1) as server:
        study = server.create(trainer=Count, {STUDY}).wait(show=False)
        print(study.state, study.best.value, study.answer.steps.executed)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_twice_in_one_process(tmp_path: Path) -> None:
    """The second service resumes from the folder of the first: nothing is trained again."""
    (tmp_path / "script.py").write_text(SCRIPT)
    said = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600
    )
    assert said.stdout.splitlines() == ["once", "completed 6.0 6", "completed 6.0 0"]
    assert stat.S_IMODE((tmp_path / ".stagetree").stat().st_mode) == 0o700  # closed to other users of the machine


@pytest.mark.slow
def test_a_notebook_defines_a_trainer_runs_it_and_changes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell puts its own there
    shell = InteractiveShell()
    cells = [
        TRAINER,
        "import stagetree\nserver = stagetree.local(slots=1, dir='kept')",
        f"first = server.create(trainer=Count, {STUDY}).wait()",
        TRAINER.replace("+= self.lr", "+= 10 * self.lr"),
        f"second = server.create(trainer=Count, {STUDY}).wait()",
        "values = first.best.value, second.best.value\nserver.stop()",
    ]
    for cell in cells:
        shell.run_cell(cell).raise_error()
    assert shell.user_ns["values"] == (6, 60)
    assert len(list((tmp_path / "kept" / "trainers").iterdir())) == 2


@pytest.mark.slow
def test_ctrl_c_leaves_the_service_up_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """The first Ctrl-C ends what waits, not the service; and nothing outlives the program, though it is killed."""
    endless = TRAINER.replace("self.n += self.lr", "import time; time.sleep(0.05)")
    (tmp_path / "script.py").write_text(
        f"import json, stagetree\n{endless}\n"
        "server = stagetree.local(slots=1)\n"
        "study = server.create(trainer=Count, name='long', metric='n', mode='max', space={'lr': [1]},"
        " tuner={'kind': 'grid', 'max_steps': 100000})\n"
        "try:\n    print(json.dumps({'pid': server._process.pid}), flush=True)\n    study.wait(show=False)\n"
        "except KeyboardInterrupt:\n"
        "    print(json.dumps({'state': study.refresh().state}), flush=True)\n"
        "input()\n"
    )
    program = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None and program.stdin is not None
    attended = psutil.Process(json.loads(program.stdout.readline())["pid"])
    others = attended.children(recursive=True)
    assert others
    program.send_signal(signal.SIGINT)
    assert json.loads(program.stdout.readline()) == {"state": "running"}
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    _, alive = psutil.wait_procs([attended, *others], timeout=60)
    assert not alive
    program.stdin.close()
    program.stdout.close()


@pytest.mark.night
def test_a_run_killed_three_times_in_a_stage_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty battery or a machine that is taken away does not poison a trial."""
    begun = tmp_path / "begun"
    step = f"open({str(begun)!r}, 'a').write('x'); import time; time.sleep(0.5); self.n += self.lr"
    (tmp_path / "trainer.py").write_text(TRAINER.replace("self.n += self.lr", step))
    spec = {"name": "killed", "trainer": "count", "metric": "n", "mode": "max", "space": {"lr": [1]}}
    (tmp_path / "study.json").write_text(json.dumps(spec | {"tuner": {"kind": "grid", "max_steps": 3}}))
    command = [sys.executable, "-m", "stagetree", "run", "study.json", "--slots", "1", "-q", "-o", "json", "--no-check"]
    temporary = tempfile.mkdtemp(prefix="st-")  # short: sockets are in there
    monkeypatch.setenv("TMPDIR", temporary)
    for _ in range(MAX_LOST):
        begun.write_text("")
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            wait_for("its first step", begun.read_text)
            run.kill()
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    found = json.loads(ended.stdout)
    assert not [*Path(temporary).glob("stagetree-*")], "no temporary files of the killed processes are left"
    assert f"Resuming {found['study']}, which was interrupted" in ended.stderr
    assert (ended.returncode, found["state"], found["failed"], found["best"]["value"]) == (0, "completed", 0, 3)


@pytest.mark.slow
def test_a_cell_that_starts_a_service_may_be_run_again_and_another_program_may_not(tmp_path: Path) -> None:
    code = "import stagetree, sys; stagetree.local(slots=1, dir=sys.argv[1])"
    first = stagetree.local(slots=1, dir=tmp_path)
    with stagetree.local(slots=1, dir=tmp_path) as second:
        assert "stopped" in repr(first) and second.client.slots()
        said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert "another stagetree is at work in" in said.stderr.splitlines()[-1]
        with pytest.raises(StagetreeError):
            first.client.slots()
    first.stop()
    with pytest.raises(Unreachable):
        stagetree.Client(second.url, retries=0).slots()


def test_a_failed_start_is_reported_in_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StagetreeError, match=f"File exists: '{tmp_path / 'file'}'"):
        stagetree.local(slots=1, dir=tmp_path / "file")
    with pytest.raises(StagetreeError, match="slots: must be at least 1, got 0"):
        stagetree.local(slots=0, dir=tmp_path)
    assert capfd.readouterr().err == ""


# While a slot still compares what a trainer's first steps ended with, the others train: in a real stack.


@pytest.mark.slow
def test_others_train_while_a_check_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_PROOFS", "1")
    (tmp_path / "study.json").write_text(json.dumps(trials("wide", ({}, 3), ({"lr": 0.2}, 3), seconds=0.5)))
    run = [sys.executable, "-m", "stagetree", "run", "study.json", "--slots", "2", "--trainers", TOYS[0], "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / ".stagetree" / "stagetree.db") as database:
        log = database.execute("select type, data from events order by position").fetchall()
    told = [(kind, json.loads(data)) for kind, data in log]
    tested = [number for number, (kind, data) in enumerate(told) if kind == "ExactnessTested"]
    assert [told[number][1]["goes_on"] for number in tested[:2]] == [True, False]
    between = [data for kind, data in told[tested[0] : tested[1]] if kind == "ChainAssigned"]
    assert [data["proof"] for data in between] == [None], "the other slot has begun"
