"""The model in memory is where a stage begins, or the stage does not begin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from cluster import TOY, Cluster
from in_process import InProcess
from studies import BRANCHES

from app.domain.chain_assignment import ChainAssignment, ResumePoint
from app.domain.events import Stage
from app.domain.terms import NodeId, StudyId
from app.registry import TrainerSource
from app.workers.slot.trainer_host import ModelMisplaced, TrainerHost, TrainerVersionMismatch
from app.workers.trial_logs import StageFiles
from stagetree.runtime.failures import TrainerFailed


def work() -> ChainAssignment:
    stages = tuple(Stage(node=NodeId("n"), start=at, end=at + 2, study=StudyId("s")) for at in (0, 2))
    return ChainAssignment(
        plan="p",
        trainer="toy",
        trainer_version="1",
        trainer_args={},
        seed=0,
        hp={"lr": 0.1},
        stages=stages,
        study="s",
        trial=0,
        resume=None,
    )


Script = Callable[[InProcess, str, int], None]


def host(
    script: Script = lambda *_: None,
    started: list[InProcess] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
    **limits: Any,
) -> TrainerHost:
    """started: a list that its processes are added to."""
    processes = [] if started is None else started

    def start() -> InProcess:
        processes.append(InProcess(script))
        return processes[-1]

    return TrainerHost(start, lambda: {"toy": TrainerSource(TOY, "1")}, 60.0, clock, **limits)


def read(resume: ResumePoint) -> NoReturn:
    raise AssertionError("no checkpoint is read")


def train(trainer: TrainerHost, index: int) -> None:
    trainer.begin(work(), index, read, None)
    trainer.train(work(), work().stages[index].end, lambda step: work().stages[index].end)


def test_the_next_stage_continues_at_the_end_of_the_previous() -> None:
    trainer = host()
    train(trainer, 0)
    trainer.set_place(("p", "n", 2))
    train(trainer, 1)


def test_a_chain_continues_with_its_first_version_of_the_code() -> None:
    """The code is in memory, so its files are not needed any more; only the next chain reads them."""
    sources = {"toy": TrainerSource(TOY, "1")}
    trainer = TrainerHost(lambda: InProcess(lambda *_: None), lambda: sources, 60.0, lambda: 0.0)
    train(trainer, 0)
    trainer.set_place(("p", "n", 2))
    sources["toy"] = TrainerSource(TOY, "2")
    train(trainer, 1)
    with pytest.raises(TrainerVersionMismatch, match="this slot has version 2"):
        train(trainer, 0)


@pytest.mark.parametrize("place", [None, ("p", "n", 1), ("p", "m", 2), ("q", "n", 2)])
def test_a_later_stage_is_not_trained_from_anywhere_else(place: tuple[str, str, int] | None) -> None:
    """Otherwise metrics of other steps would be recorded under its node's name."""
    trainer = host()
    train(trainer, 0)
    if place:
        trainer.set_place(place)
    with pytest.raises(ModelMisplaced, match="the model in memory is at"):
        trainer.begin(work(), 1, read, None)


def test_no_stage_but_the_first_begins_in_a_fresh_process() -> None:
    with pytest.raises(ModelMisplaced):
        host().begin(work(), 1, read, Path("log"))


@pytest.mark.parametrize("args", [{}, {"tag": "other"}])
def test_only_a_model_that_is_where_the_chain_begins_and_was_built_alike_is_gone_on_with(args: dict[str, str]) -> None:
    """At step 0 that is no model; what a chain left behind that was lost is anywhere."""
    done = list[str]()
    trainer = host(lambda process, what, step: done.append(what))
    train(trainer, 0)
    trainer.set_place(("p", "n", 2))
    there = replace(work(), stages=work().stages[1:], trainer_args=args, resume=ResumePoint("n", 2, "key", ""))
    with nullcontext() if not args else pytest.raises(AssertionError, match="no checkpoint is read"):
        trainer.begin(there, 0, read, None)
    done.clear()
    trainer.begin(work(), 0, read, None)
    assert done == ["build"]  # in another process, where nothing was trained


def test_a_process_that_died_while_idle_is_replaced(tmp_path: Path) -> None:
    """It was kept, and each trial that came to it failed."""
    started, files = list[InProcess](), StageFiles(tmp_path / "printed", None)

    def log(process: InProcess, what: str, step: int) -> None:
        if what == "log" and process is started[0] and step == 2:
            raise TrainerFailed("crash", "the trainer's process was ended by signal 9")

    trainer = host(log, started)
    train(trainer, 0)
    trainer.set_place(("p", "n", 2))
    with pytest.raises(TrainerFailed):
        trainer.begin(work(), 1, read, files)
    trainer.begin(work(), 0, read, files)
    assert len(started) == 2


def test_a_state_is_loaded_into_an_untrained_model() -> None:
    """Where the process had trained another trial, the chain found what that had left behind."""
    done, started = list[str](), list[InProcess]()

    trainer = host(lambda process, what, step: done.append(f"{what} in {started.index(process)}"), started)
    train(trainer, 0)
    state = trainer.save()
    trainer.set_place(("p", "m", 2))
    done.clear()
    there = replace(work(), stages=work().stages[1:], resume=ResumePoint("n", 2, "key", ""))
    trainer.begin(there, 0, lambda resume: state, None)
    assert done == ["build in 1", "load in 1"]


@pytest.mark.parametrize("tolerated", [(), ("exception",)])
def test_a_process_is_used_no_more_after_a_failure_unless_that_does_it_no_harm(tolerated: tuple[str, ...]) -> None:
    trainer = host()
    train(trainer, 0)

    def fail(process: object) -> None:
        raise TrainerFailed("exception", "its own")

    with pytest.raises(TrainerFailed):
        trainer.call(fail, tolerated)
    assert (trainer.process is not None) == bool(tolerated)


def test_a_missing_trainer_is_reported() -> None:
    with pytest.raises(
        TrainerVersionMismatch, match="the chain needs trainer 'other' in version 1; this slot has none"
    ):
        host().begin(replace(work(), trainer="other"), 0, read, None)


def test_a_state_of_an_unknown_node_is_no_model() -> None:
    with pytest.raises(ModelMisplaced, match="no process"):
        host().save()


def test_where_nothing_is_in_memory_there_is_nothing_to_end() -> None:
    host().kill()
    host().end_process()


def test_a_chain_resumes_in_the_process_that_trained_its_beginning_unless_that_has_grown() -> None:
    started = list[InProcess]()
    trainer = host(started=started, growth_bytes=100)
    train(trainer, 0)
    trainer.set_place(("p", "n", 2))
    state = trainer.save()
    for resident, processes in ((0, 1), (0, 1), (1000, 1), (0, 2)):
        there = replace(work(), stages=work().stages[1:], resume=ResumePoint("n", 2, "key", ""))
        trainer.begin(there, 0, lambda resume: state, None)
        started[-1].resident = resident
        trainer.set_place(("p", "n", 2))
        assert len(started) == processes


def test_a_process_has_no_template_twice_where_it_can_have_none(caplog: pytest.LogCaptureFixture) -> None:
    done = list[str]()
    trainer = host(lambda process, what, step: done.append(what))
    for _ in range(3):
        train(trainer, 0)
    assert done.count("build") == 3
    assert done.count("become_template") == 1
    assert caplog.messages == [
        "each chain of trainer 'toy' builds it in a process of its own: it is no process of its own"
    ]


def used_processes(most: float | None, seconds: float = 3.0) -> tuple[list[bool], int]:
    """Whether each of three chains shared its process, which takes this long to start; and the number of starts."""
    now, started = [0.0], list[InProcess]()

    def pass_time(process: InProcess, what: str, step: int) -> None:
        now[0] += seconds if what == "build" else 0.0

    trainer, shared = host(pass_time, started, lambda: now[0]), list[bool]()
    for _ in range(3):
        chain = replace(work(), most_fresh_seconds=most)
        trainer.begin(chain, 0, read, None)
        trainer.train(chain, 2, lambda step: 2)
        shared.append(trainer.shares_process)
    return shared, len(started)


@pytest.mark.parametrize("most", [None, 3.0])
def test_a_chain_never_shares_a_process_where_a_fresh_one_takes_little_of_its_time(most: float | None) -> None:
    assert used_processes(most) == ([False, False, False], 3)


def test_a_chain_says_that_it_shares_a_process_where_a_fresh_one_takes_too_long() -> None:
    assert used_processes(2.9) == ([False, True, True], 1)


def test_a_process_in_which_something_was_left_is_not_shared() -> None:
    now, started = [0.0], list[InProcess]()

    def leave(process: InProcess, what: str, step: int) -> None:
        now[0] += 3.0 if what == "build" else 0.0
        process.left = ["SCALE (a global of trainer.py)"] if what == "build" and len(started) == 1 else []

    trainer = host(leave, started, lambda: now[0])
    for processes in (1, 2):
        trainer.begin(replace(work(), most_fresh_seconds=1.0), 0, read, None)
        assert not trainer.shares_process and len(started) == processes


@pytest.mark.parametrize("fresh", ["auto", "always"])
def test_a_chain_is_told_how_long_a_fresh_process_may_take(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fresh: str
) -> None:
    """2 % of the expected time, once there is one; with `always` it has a fresh process in any case."""
    told = list[tuple[int, float | None]]()
    begin = TrainerHost.begin

    def note_begin(host: TrainerHost, work: ChainAssignment, *rest: Any) -> None:
        told.append((work.stages[-1].end - work.stages[0].start, work.most_fresh_seconds))
        begin(host, work, *rest)

    monkeypatch.setattr(TrainerHost, "begin", note_begin)
    cluster.script = lambda slot, process, what, step: cluster.clock.wait(1.0) if what == "train" else None
    done = cluster.run(cluster.submit({**BRANCHES, "merge": False, "fresh_processes": fresh}))
    cluster.run(cluster.submit({**BRANCHES, "name": "next", "fresh_processes": fresh}))
    assert told[0][1] is None
    expected = [None if fresh == "always" else pytest.approx(0.02 * steps, rel=0.1) for steps, _ in told[-2:]]
    assert [most for _, most in told[-2:]] == expected
    assert not cluster.plan.shares_processes(done)
