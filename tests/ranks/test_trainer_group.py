"""The processes of a trial on several devices act as one: the same answers, and a common end."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.workers.trainer_connection import STEP_SECONDS, Deadline
from app.workers.trainer_group import TrainerGroup
from app.workers.trainer_process import TrainerProcess
from stagetree.runtime.failures import TrainerFailed
from tests.runtime.moods import are_gone

ADDED = str(Path(__file__).parent / "added.py")
PATIENT = Deadline(60.0)
HP = {"lr": 0.1}
SHORT = 4.0
"""Longer than any call of this trainer, on a busy machine too."""

Start = Callable[..., TrainerProcess]


def build(process: TrainerProcess, **args: Any) -> TrainerProcess:
    process.call(PATIENT).build(file=ADDED, name="added", args=args, seed=0)
    return process


def train_until(process: TrainerProcess, until: int) -> bytes:
    process.train(HP, until, deadline=PATIENT)
    return state(process)


def state(process: TrainerProcess) -> bytes:
    saved = process.save(deadline=PATIENT)
    try:
        return bytes(saved.view())
    finally:
        saved.close()


def pids(process: TrainerProcess) -> list[int]:
    return [each.pid for each in (process.ranks if isinstance(process, TrainerGroup) else [process.leader])]


@pytest.mark.slow
def test_any_number_of_ranks_has_the_same_bits(start: Start) -> None:
    one, two, four = (build(start(ranks)) for ranks in (1, 2, 4))
    states = {train_until(process, 7) for process in (one, two, four)}
    assert len(states) == 1
    assert two.call(PATIENT).evaluate().metrics["sum"] == one.call(PATIENT).evaluate().metrics["sum"]
    assert four.call(PATIENT).evaluate().metrics["world"] == 4


def test_a_state_resumes_on_another_number_of_ranks(start: Start) -> None:
    one, two = build(start(1)), build(start(2))
    end = train_until(build(start(1)), 9)
    one.train(HP, 4, deadline=PATIENT)
    saved = one.save(deadline=PATIENT)
    two.call(PATIENT).load(fds=saved.lend(), hp=HP, step=4)
    saved.close()
    two.train(HP, 6, deadline=PATIENT)
    saved = two.save(deadline=PATIENT)
    one.call(PATIENT).load(fds=saved.lend(), hp=HP, step=6)
    saved.close()
    assert train_until(one, 9) == end


def test_the_study_sets_the_shards(start: Start) -> None:
    one, two = start(1), start(2)
    for process in (one, two):
        process.call(PATIENT).build(file=ADDED, name="added", args={}, seed=0, shards=8)
    assert train_until(one, 3) == train_until(two, 3) != train_until(build(start(1)), 3)


@pytest.mark.slow
def test_a_group_stops_together_at_any_signal(start: Start) -> None:
    """The ranks are at different places of a step when the signal comes, a hundred times over."""
    group, dice, step = build(start(2)), random.Random(0), 0
    for _ in range(100):
        at = time.monotonic() + dice.uniform(0.0, 0.01)
        stop: Callable[[int], int | None] = lambda _, at=at: 0 if time.monotonic() > at else None  # type: ignore[misc]  # noqa: E731
        group.train(HP, step + 1 + dice.randrange(40), deadline=PATIENT, on_progress=stop)
        assert group.leader.step >= step
        step = group.leader.step
    ended = state(group)
    assert ended == train_until(build(start(1)), step)


@pytest.mark.parametrize(("call", "kind"), [("train", "rank"), ("evaluate", "hang")])
def test_a_rank_uses_the_learnt_step_time_only_during_steps(
    start: Start, monkeypatch: pytest.MonkeyPatch, call: str, kind: str
) -> None:
    """Here the rank times out before the slot, since its extra minute of waiting is negative."""
    monkeypatch.setattr("app.workers.trainer_group.LATE_SECONDS", 1.0 - STEP_SECONDS)
    group = build(start(2, late_seconds=600.0), mishap="loop", call=call)
    steps = Deadline(1800.0).limit_steps(is_patient=False)
    group.train(HP, 2, deadline=steps)
    group.train(HP, 3, deadline=steps)
    with pytest.raises(TrainerFailed) as failed:
        group.train(HP, 9, deadline=steps)
        group.call(Deadline(SHORT)).evaluate()
    assert failed.value.kind == kind
    assert kind == "hang" or "Timed out waiting 1000ms" in failed.value.error


def test_the_output_of_each_rank_has_a_file(start: Start, tmp_path: Path) -> None:
    group = start(2)
    group.log(tmp_path / "7.log", tmp_path / "7.jsonl")
    build(group)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7.jsonl", "7.log", "7.r1.log"]


MISHAPS = {"kill": "rank", "stop": "rank", "raise": "exception", "memory": "out_of_memory", "loop": "hang"}
CALLS = ("build", "train", "evaluate", "save", "load")


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_mishap_in_one_rank_ends_all_and_is_reported_by_its_kind(start: Start, mishap: str, call: str) -> None:
    who = (CALLS.index(call) + len(mishap)) % 2  # each rank in turn
    group = start(2)
    found, short = pids(group), Deadline(SHORT)
    with pytest.raises(TrainerFailed) as failed:
        group.call(short).build(file=ADDED, name="added", args={"mishap": mishap, "call": call, "who": who}, seed=0)
        group.train(HP, 5, deadline=short)
        group.call(short).evaluate()
        saved = group.save(deadline=short)
        group.call(short).load(fds=saved.lend(), hp=HP, step=5)
    assert failed.value.kind == MISHAPS[mishap]
    assert f"rank {who}" in failed.value.error.lower()
    assert mishap != "loop" or failed.value.error.count("The trainer was here") == 2, "the stacks of all"
    group.close()
    assert are_gone(*found)


def test_a_killed_rank_ends_all(start: Start) -> None:
    group = build(start(4))
    found = pids(group)
    os.kill(found[3], signal.SIGKILL)
    with pytest.raises(TrainerFailed) as failed:
        group.train(HP, 10**9, deadline=PATIENT)
    assert failed.value.kind == "rank"
    group.close()
    assert are_gone(*found)


def test_a_rank_that_is_stopped_is_not_waited_for_as_long_as_a_step(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.workers.trainer_group.STOPPED_SECONDS", 0.5)
    group = start(2)
    with pytest.raises(TrainerFailed, match="rank 1 was stopped by a signal") as failed:
        build(group, mishap="stop", call="train").train(HP, 9, deadline=Deadline(600.0))
    assert failed.value.kind == "rank"


def test_an_error_of_all_ranks_is_the_users(start: Start) -> None:
    group, one = build(start(2)), build(start(1))
    failures = []
    for process in (group, one):
        with pytest.raises(TrainerFailed) as failed:
            process.train({"lr": "fast"}, 2, deadline=PATIENT)
        failures.append((failed.value.kind, failed.value.signature))
    assert failures[0] == failures[1]
    assert failures[0][0] == "exception"
