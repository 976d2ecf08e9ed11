"""Scripts that a launcher starts in several processes: exact, at one step, and ended with each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from built_models import image, train_to
from stacks import wait_for

from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.model import HpTimeline, Model
from stagetree.trainer.ranks import group

HP = {"lr": {"family": "linear", "init": 0.5, "slope": -0.01}}
TORCHRUN = "torchrun --nproc-per-node 2"
SCRIPT = """
import os, random
import torch
from torch import distributed as dist
import stagetree

run = stagetree.attach("walk", launch="LAUNCH", scale=1.0, hp={"lr": 0.5}, steps=4, seed=3)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
rank = int(os.environ.get("RANK", 0))
torch.manual_seed(run.seed + rank)  # each draws for itself
where, own = torch.zeros(3), torch.zeros(3)

def load(state):
    where.copy_(state["where"])
    own.copy_(state["own"])

def evaluate():
    random.random(), torch.rand(1)  # it may draw as much as it likes
    return {"where": where.sum(), "pid": os.getpid()}

run.state(save=lambda: {"where": where, "own": own}, load=load, evaluate=evaluate)
for step, hp in run.steps():
    moved = hp["lr"] * torch.rand(3) * random.random() * run.args["scale"]
    own += moved
    if "RANK" in os.environ:
        dist.all_reduce(moved)
    where += moved
    run.log("moved", moved.sum())
"""

Build = Callable[..., Model]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Builds the model of a script's text with a launcher; all of its processes end with the test."""
    built = list[Model]()

    def model(launch: str, text: str = SCRIPT, **args: Any) -> Model:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "walk.py").write_text(text.replace("LAUNCH", launch))
        built.append(Model.build(load_trainer(folder / "walk.py", "walk"), args, 3, "cpu"))
        return built[-1]

    yield model
    for each in built:
        each.trainer.close()


def train(model: Model, until: int) -> Model:
    return train_to(model, until, HP)


def train_by_grants(model: Model, until: int, told: Callable[[int], bool] = lambda step: True) -> Model:
    """Trained by as many steps at once as are granted."""
    while model.step < until:
        model.advance_some(HpTimeline(HP), until, told)
    return model


def state(model: Model) -> dict[str, Any]:
    found: dict[str, Any] = state_format.unpack(image(model))["trainer"]
    return found


@pytest.mark.slow
def test_two_ranks_under_torchrun(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    """Without a break, with one, and ended together when one of them is killed."""
    model = train(build(TORCHRUN, scale=2.0), 3)
    half = image(model)
    assert model.logged_means()["moved"] > 0
    first, *others = state(train(model, 6))["first"], *state(model)["others"]
    assert len(others) == 1
    assert others[0]["trainer"]["state"]["where"] == state_format.SAME_AS_FIRST
    assert not torch.equal(others[0]["trainer"]["state"]["own"], first["trainer"]["state"]["own"])
    whole, metrics = image(model), model.evaluate()
    model.load(state_format.unpack(half), HpTimeline(HP), 3)
    model.evaluate()
    assert image(train_by_grants(model, 6)) == whole
    assert model.evaluate() == metrics
    pid = int(metrics["pid"] or 0)
    every = [psutil.Process(pid), *psutil.Process(pid).parents()[0].children(), psutil.Process(pid).parent()]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TrainerFailed, match=r"In rank [01] of 2") as failed:
        train(model, 8)
    assert failed.value.kind == "rank"
    wait_for("the end of all", lambda: not any(each is not None and each.is_running() for each in every))
    with pytest.raises(TrainerFailed, match=f"{TORCHRUN} has ended"):
        train(model, 8)


@pytest.mark.slow
def test_a_grant_ends_where_it_is_cut_and_where_a_step_fails(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    slow = "    print('at', step)\n    time.sleep(0.2 * (step == 30))\n    assert step < 40\n"
    model, told = build("python -u", SCRIPT.replace("import os", "import time, os") + slow), list[int]()
    train_by_grants(model, 20)
    while model.step < 30:
        model.advance_some(HpTimeline(HP), 100, lambda step: bool(told.append(step)))
    assert told and max(told) <= 30 <= model.step <= 31  # the slow step is the last that was begun
    with pytest.raises(TrainerFailed, match="assert step < 40") as failed:
        train_by_grants(model, 100)
    assert model.step == 40
    assert (failed.value.kind, failed.value.error.splitlines()[0]) == ("exception", "In rank 0 of 1:")
    assert failed.value.signature == "AssertionError in <module>, walk.py:32"
    assert "at 39" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        ("no-such-launcher", "no-such-launcher cannot be started: No such file or directory"),
        ("python -c 'import-this'", "ended before its ranks began; its last words:"),
        ("torchrun --nproc-per-node {rnks}", "names 'rnks', which is no literal argument of attach"),
    ],
)
def test_a_launcher_that_starts_nothing(build: Build, launch: str, says: str) -> None:
    with pytest.raises(TrainerFailed) as failed:
        build(launch.replace("'import-this'", "1/0"))
    assert says in failed.value.error


def test_the_leader_of_a_gang_starts_as_many_as_it_has_devices(build: Build) -> None:
    before = group.here()
    try:
        group.be(group.Ranks(rank=1, world=2, parallel="ddp:2"))
        member = train(build("no-such-launcher"), 2)
        assert (member.evaluate(), state(member)) == ({}, {})
        member.load(member.state(), HpTimeline(HP), 2)
        group.be(group.Ranks(rank=0, world=2, parallel="ddp:2"))
        with pytest.raises(TrainerFailed, match="n-2 cannot be started"):
            build("n-{devices}")
        group.be(group.Ranks(shards=2))
        with pytest.raises(TrainerFailed, match="`parallel: ddp` instead of `shards`"):
            build("python")
    finally:
        group.be(before)


READING = SCRIPT.replace("LAUNCH", "python").replace(', "pid": os.getpid()', "")


@pytest.mark.slow
def test_values_read_by_no_process_are_reported(build: Build) -> None:
    """It worked for a script in one process, but not here."""
    model = build("python")
    until, unread = HpTimeline({**HP, "decay": 0.1}), model.trainer.unread  # type: ignore[attr-defined]
    while model.step < 3:
        model.advance_some(until, 3, lambda step: True)
    assert unread() == ["decay"]
    model.load(state_format.unpack(image(model)), until, 3)
    assert unread() == ["decay"]


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True])
def test_check_names_parts_that_processes_hide(tmp_path: Path, forgets: bool) -> None:
    (tmp_path / "walk.py").write_text(READING.replace('    own.copy_(state["own"])\n', "") if forgets else READING)
    study = {"name": "walk", "trainer": "walk", "metric": "where", "mode": "min", "space": {"lr": [0.1], "decay": [1]}}
    (tmp_path / "study.json").write_text(json.dumps(study | {"tuner": {"kind": "grid", "max_steps": 4}}))
    command = [sys.executable, "-m", "stagetree", "check", "study.json", "--trainers", "walk.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "not read          `decay` changes nothing: " in done.stdout
    unseen = "; the variables of the processes that `launch` starts were not looked at"
    assert (unseen in done.stdout) is forgets
    assert done.returncode == (1 if forgets else 0)


@pytest.mark.slow
def test_by_hand_one_of_them_speaks(tmp_path: Path) -> None:
    file = tmp_path / "walk.py"
    file.write_text(
        SCRIPT.replace("LAUNCH", TORCHRUN).replace('    if "RANK" in os.environ:\n        dist', "    if 0: dist")
    )
    file.write_text(file.read_text().replace('if "RANK" in os.environ:\n    dist', "if 0: dist"))
    said = []
    for rank in ("0", "1"):
        environment = {**os.environ, "RANK": rank, "WORLD_SIZE": "2"}
        said.append(subprocess.check_output([sys.executable, str(file)], env=environment, text=True))
    assert said[0].startswith("step 4: moved ")
    assert said[1] == ""
