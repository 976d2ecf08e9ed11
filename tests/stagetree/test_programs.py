"""Trainers that are programs: called once for each stage, and exact over resumes, stops and looks of the runner."""

from __future__ import annotations

import json
import linecache
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stacks import wait_for

from app.registry import Catalogue
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.exactness import differences
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.loading import imports_of, load_trainer
from stagetree.runtime.model import HpTimeline, Model
from stagetree.source.definitions import Arguments
from stagetree.source.discovery import arguments
from stagetree.source.versions import module_files, version_of
from stagetree.trainer.program import FOLDERS

HP = {"lr": {"family": "linear", "init": 0.5, "slope": -0.01}}
LAST = 12

E2E = Path(__file__).parents[1] / "e2e"
TRAINER = (E2E / "walker.py").read_text()
PROGRAM = (E2E / "walk.py").read_text()

Build = Callable[..., Model]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "walk.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def build(folder: Path) -> Iterator[Build]:
    """Builds the model of the program, or of that in another text; all of them are closed, and their modules gone."""
    built, finders, path = list[Model](), list(sys.meta_path), list(sys.path)

    def forget() -> None:
        imports_of.cache_clear()
        sys.modules.pop("trainer", None)
        linecache.cache.pop(str(folder / "trainer.py"), None)
        sys.meta_path[:], sys.path[:] = finders, path

    def model(text: str = PROGRAM, trainer: str = "", **args: Any) -> Model:
        if text != PROGRAM:
            (folder / "walk.py").write_text(text)
        if trainer:
            (folder / "trainer.py").write_text(trainer)
        forget()
        built.append(Model.build(load_trainer(folder / "trainer.py", "walk"), args, 3, "cpu"))
        return built[-1]

    yield model
    for each in built:
        each.trainer.close()
    forget()


def expected_value(steps: int, scale: float = 1.0) -> float:
    where, timeline = 3.0, HpTimeline(HP)
    for step in range(steps):
        where = where * 0.9 + scale * float(timeline.at(step)["lr"])
    return where


def train(model: Model, until: int, stop: int = 0, evaluate: tuple[int, ...] = ()) -> None:
    """As the process of a trainer does it."""
    timeline = HpTimeline(HP)
    model.expect(timeline, until, stop or until, evaluate)
    while model.step < until:
        model.advance(timeline)


def where(model: Model) -> float:
    content = model.state()["trainer"]["checkpoint"]["files"]["checkpoint"]
    found: float = json.loads(bytes(content))["where"]
    return found


# ------------------------------------------------------------------------------------------------ it is exact


def starts(capfd: pytest.CaptureFixture[str]) -> list[tuple[int, int]]:
    """The steps of each start of a program; each start is a line of the trial's log."""
    lines = (line.split() for line in capfd.readouterr().out.splitlines() if line.startswith("--- python"))
    return [(int(words[6]), int(words[7])) for words in lines]


def test_one_process_trains_a_stage_with_all_its_evaluations(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    model = build()
    train(model, 4, stop=LAST, evaluate=(4, 8, LAST))
    assert model.evaluate() == {"where": expected_value(4)}
    train(model, 8, stop=LAST, evaluate=(8, LAST))
    assert model.evaluate() == {"where": expected_value(8)}
    train(model, LAST, stop=LAST, evaluate=(LAST,))
    assert model.evaluate() == {"where": expected_value(LAST)}
    assert where(model) == expected_value(LAST)
    assert model.evaluate() == {"where": expected_value(LAST)}
    assert starts(capfd) == [(0, LAST)]


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["train", "evaluate", "save", "settle", "cut", "reload", "copy"]), st.integers(1, 4)),
    min_size=2,
    max_size=6,
)


@pytest.mark.slow
def test_results_equal_one_run_for_any_split(build: Build) -> None:
    @settings(max_examples=25)
    @given(ACTIONS, st.booleans())
    def holds(actions: list[tuple[str, int]], is_foreseen: bool) -> None:
        model = build()
        for action, steps in actions:
            if action == "train":
                until = model.step + steps
                train(model, until, until + 3 if is_foreseen else until, (until,) if is_foreseen else ())
            elif action == "settle":
                for step, metrics in model.settle(HpTimeline(HP)):
                    assert metrics == {"where": pytest.approx(expected_value(step), abs=1e-12)}
            elif action == "cut" and model.step:
                train(model, model.step + 1, model.step + 4, (model.step + 1,))
                train(model, model.step + steps)
            elif action == "evaluate":
                assert model.evaluate() == {"where": pytest.approx(expected_value(model.step), abs=1e-12)}
            elif model.step:
                assert where(model) == expected_value(model.step)
            if action in ("reload", "copy") and model.step:
                fd, size = model.save()
                saved = state_format.unpack(os.pread(fd, size, 0))
                os.close(fd)
                other = build() if action == "copy" else model
                other.load(saved, HpTimeline(HP), model.step)
                model = other
        train(model, model.step + 2)
        assert where(model) == expected_value(model.step)
        model.trainer.close()

    holds()


def test_a_program_ended_by_sigterm_repeats_its_requested_steps(
    build: Build, capfd: pytest.CaptureFixture[str]
) -> None:
    model = build(PROGRAM.replace("signal.signal(", "print("), seconds=0.05)
    train(model, 3, stop=LAST, evaluate=(3,))
    model.settle(HpTimeline(HP))
    assert model.step == 3
    assert where(model) == expected_value(3)
    assert starts(capfd) == [(0, LAST), (0, 3)]


def test_a_program_that_is_asked_to_stop_is_where_its_checkpoint_is(build: Build) -> None:
    model = build(seconds=0.05)
    train(model, 2, stop=LAST, evaluate=(2,))
    time.sleep(0.12)
    model.settle(HpTimeline(HP))
    assert 2 <= model.step < LAST
    assert where(model) == expected_value(model.step)


def test_metrics_before_its_checkpoint_are_reported(build: Build) -> None:
    """The runner went from step 2 to 12, and the evaluations at 4 and 8 were never on record."""
    model = build()
    train(model, 2, stop=LAST, evaluate=(2, 4, 8, LAST))
    assert model.evaluate() == {"where": expected_value(2)}
    wait_for("its checkpoint", lambda: [each for folder in _folders() for each in folder.glob("*/checkpoint")])
    passed = model.settle(HpTimeline(HP))
    assert passed == [(4, {"where": expected_value(4)}), (8, {"where": expected_value(8)})]
    assert model.evaluate() == {"where": expected_value(LAST)}
    assert where(model) == expected_value(LAST)


def test_a_program_is_stopped_at_the_step_and_another_resumes(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    """The program hears of its new end before it comes there, so that no step is trained twice."""
    model = build(seconds=0.05)
    train(model, 1, stop=LAST, evaluate=(1,))
    train(model, 11)
    assert where(model) == expected_value(11)
    (first, second) = starts(capfd)
    assert first == (0, LAST)
    assert second == (second[0], 11)
    assert 0 < second[0] < 11


def test_a_checkpoint_may_be_a_folder(build: Build) -> None:
    program = PROGRAM.replace("Path(source)", 'Path(f"{source}/deep/part")')
    program = program.replace("    Path(to)", '    Path(f"{to}/deep").mkdir(parents=True)\n    Path(f"{to}/deep/part")')
    program += '    Path(f"{to}/empty").touch()\n'
    model, other = build(program), build()
    train(model, 4)
    state = model.state()
    assert sorted(state["trainer"]["checkpoint"]["files"]) == ["deep/part", "empty"]
    other.load(state, HpTimeline(HP), 4)
    train(other, LAST)
    assert other.evaluate() == {"where": expected_value(LAST)}


@pytest.mark.slow
def test_a_distributed_checkpoint_of_torch_is_the_same_each_time(build: Build) -> None:
    """Its metadata names its folder and an id of that one time."""
    load = 'd = {"w": torch.zeros(1)}; dcp.load(d, checkpoint_id=source); where = float(d["w"])'
    program = PROGRAM.replace("import json", "import json\nimport torch\nimport torch.distributed.checkpoint as dcp")
    program = program.replace(
        'where = json.loads(Path(source).read_text())["where"] if source else float(seed)',
        f"where = float(seed)\nif source: {load}",
    )
    program = program.replace(
        'Path(to).write_text(json.dumps({"where": where}))', 'dcp.save({"w": torch.tensor([where])}, checkpoint_id=to)'
    )
    trainer = TRAINER.replace("python -S", "python")
    one, other = build(program, trainer), build(program, trainer)
    for model in (one, other):
        train(model, 2)
    state = one.state()
    assert differences.first_difference(*(differences.leaves(each.state()["trainer"]) for each in (one, other))) == ""
    other.load(state, HpTimeline(HP), 2)
    train(other, 4, stop=4, evaluate=(4,))
    assert other.evaluate() == {"where": pytest.approx(expected_value(4), abs=1e-6)}


def test_a_programs_logged_values_are_means(build: Build) -> None:
    model = build()
    train(model, 4)
    assert model.logged_means() == {"at": pytest.approx(sum(map(expected_value, range(1, 5))) / 4)}
    assert model.logged_means() == {}


def test_arguments_reach_the_program(build: Build) -> None:
    model = build(scale=2.5)
    train(model, 4)
    assert where(model) == expected_value(4, scale=2.5)


# ------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize(
    ("line", "instead", "kind", "says"),
    [
        ("step = start\n", "sys.exit('no data')\n", "exception",
         "ended at step 0 with exit code 1; its last words:\nno data"),
        ("step = start\n", "signal.raise_signal(9)\n", "crash", "by signal 9 (SIGKILL)"),
        ("step = start\n", "raise MemoryError\n", "out_of_memory", "MemoryError"),
        ("if step > start:", "if False:", "exception", "wrote no checkpoint to"),
        ("    say(step, log", "    say(step - 9, log", "exception", "with N from 0 to 2: {"),
        ("    say(step, log", "    print('{', file=file, flush=True); 0, dict(log", "exception",
         "with N from 0 to 2: {"),
        ("    measure(step)\nif", "if", "exception", "ended at step 2 with exit code 0"),
        ("while step < stop", "while step < stop - 1", "exception", "ended at step 1 with exit code 0"),
    ],
)  # fmt: skip
def test_errors_of_a_program_are_reported(build: Build, line: str, instead: str, kind: str, says: str) -> None:
    assert line in PROGRAM
    model = build(PROGRAM.replace(line, instead))
    with pytest.raises(TrainerFailed) as failed:
        train(model, 2, stop=2, evaluate=(2,))
        model.evaluate()
        model.state()
    assert failed.value.kind == kind
    assert says in failed.value.error


def test_the_wait_for_a_programs_metrics_is_bounded(build: Build) -> None:
    model = build(PROGRAM.replace("    measure(step)\nif", "if") + "\ntime.sleep(60)\n")
    with pytest.raises(TrainerFailed, match=r"after step 2, one of {evaluate}, without a line with its metrics"):
        train(model, 2, stop=4, evaluate=(2, 4))
        model.evaluate()


def test_a_missing_program_is_reported(build: Build) -> None:
    trainer = TRAINER.replace("python", "no-such-program")
    with pytest.raises(TrainerFailed, match=r"no-such-program cannot be started in .*: No such file or directory"):
        train(build(trainer=trainer), 1)


def test_arguments_that_it_does_not_take(build: Build) -> None:
    with pytest.raises(
        TrainerFailed, match=r"trainer_args.sclae: the command takes scale, seconds; did you mean scale\?"
    ):
        build(sclae=2)


def test_arguments_that_it_lacks(build: Build) -> None:
    trainer = TRAINER.replace('"scale": 1.0, ', "")
    with pytest.raises(TrainerFailed, match=r"trainer_args.scale is missing: the command of walk needs it"):
        build(trainer=trainer)


def test_nothing_outlives_the_trainer(build: Build) -> None:
    model = build(PROGRAM + "\ntime.sleep(60)\n")
    train(model, 2)
    assert _folders()
    model.trainer.close()
    assert not _folders()
    left = Path(tempfile.gettempdir()) / f"{FOLDERS}999999999-x"
    left.mkdir()
    build()
    assert not left.exists()


def _folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{FOLDERS}{os.getpid()}-*"))


# ------------------------------------------------------------------------------------------------ which code it is


def test_the_files_that_the_command_names_are_part_of_the_version(folder: Path) -> None:
    trainer = folder / "trainer.py"
    (folder / "conf.toml").write_text("a = 1")
    (folder / "walk.py").write_text("import helper\n" + PROGRAM)
    (folder / "helper.py").write_text("")
    trainer.write_text(TRAINER.replace("walk.py", "walk.py --conf conf.toml"))
    versions = [version_of(module_files(trainer))]
    assert set(module_files(trainer)) == {"trainer.py", "walk.py", "helper.py", "conf.toml"}
    for name in ("conf.toml", "helper.py", "walk.py"):
        (folder / name).write_text((folder / name).read_text() + "\n")
        versions.append(version_of(module_files(trainer)))
    assert len(set(versions)) == 4


def test_a_program_that_was_changed_meanwhile_is_refused(build: Build, folder: Path) -> None:
    model = build()
    (folder / "walk.py").write_text(PROGRAM.replace("0.9", "0.8"))
    with pytest.raises(TrainerFailed, match=r"walk.py has changed since this version of the trainer was loaded"):
        train(model, 2)


def test_the_server_reads_the_commands_arguments_without_running_it(folder: Path) -> None:
    trainer = folder / "trainer.py"
    names = ("scale", "seconds")
    assert arguments(trainer, module_files(trainer)) == {"walk": Arguments(names, (), is_open=False)}
    assert set(Catalogue([str(trainer)]).describe()) == {"walk"}
    trainer.write_text(TRAINER.replace('"scale": 1.0, ', ""))
    assert arguments(trainer, module_files(trainer)) == {"walk": Arguments(names, ("scale",), is_open=False)}
