"""Predictions for the trials of a `pop` study as the commands show them: made-up curves, in a store without a stack."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from commandline import Stagetree

from app.domain import events as e
from app.domain.search_plan import Node, Study
from app.domain.terms import TrialState
from app.events.database import Database
from app.events.records import record
from app.events.sql_log import SqlRecords
from app.simulation.simulator import Simulator
from tests.tuners.worlds import STUDY, run_simulator, simulator, spec

ENDS = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
POP = {"kind": "pop", "num_trials": 6, "max_steps": 20, "boundary": 2, "bounds": [0, 1], "target": 0.799}


def rising(node: Node, step: int) -> e.Metrics:
    end = node.segment.values(node.start)["end"]
    assert isinstance(end, float)
    return {"accuracy": end * (1 - math.exp(-step / 4))}


def pop(**fields: Any) -> Simulator:
    """A `pop` study on two virtual slots, submitted."""
    tuner, shown = POP | {"sampler": "grid"} | fields, {"metric": "accuracy", "mode": "max", "eval_every": 1}
    return simulator(spec(tuner, space={"end": ENDS}, merge=False, **shown), slots=2, measure=rising)


def store_study(folder: Path, world: Simulator) -> tuple[Path, Study]:
    """A store with the study as it stands, and the study."""
    database = Database(f"sqlite:///{folder / 'stagetree.db'}")
    database.create()
    records = SqlRecords(database)
    record(records.log, "plan-1", world.events, at=1.0, alongside=lambda rows: None)
    records.close()
    return folder, world.plan.studies[STUDY]


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, Study]:
    """The study half-way."""
    world = pop()
    for _ in range(20):
        assert world.advance(), "the study is not over"
    return store_study(tmp_path, world)


@pytest.mark.slow
def test_predictions_are_in_the_list_and_at_a_trial(stagetree: Stagetree, store: tuple[Path, Study]) -> None:
    folder, study = store
    judged = [trial for trial in study.trials if trial.priority_reason and trial.state != TrialState.STOPPED]
    listed = stagetree("trials", STUDY, "--dir", folder)
    assert listed.out.splitlines()[0].split()[5:9] == ["class", "p", "seconds", "to"]
    shown = {
        trial["trial"]: trial.get("prediction")
        for trial in stagetree("trials", STUDY, "--dir", folder, "-o", "json").json
    }
    for trial in judged:
        numbers = {name: trial.priority_reason[name] for name in ("class", "p", "expected_seconds", "target", "proven")}
        numbers |= {} if numbers["proven"] else {"p": None, "expected_seconds": None}
        assert shown[trial.number] == numbers | {"step": trial.priority_reason["steps"]}
        said = stagetree("trial", STUDY, trial.number, "--dir", folder).out
        reaches = ": reaches 0.799 with p " if numbers["proven"] else ", p not yet known"
        assert f"predicted {trial.priority_reason['class']} at step {trial.priority_reason['steps']}{reaches}" in said
    assert not all(trial.priority_reason["proven"] for trial in judged) and "not yet known" in listed.out
    ranked = stagetree("trials", STUDY, "--dir", folder, "--sort", "p", "-o", "json").json
    chances = [trial["prediction"]["p"] or 0.0 for trial in ranked if "prediction" in trial]
    assert judged and chances == sorted(chances, reverse=True)


def test_replay_prints_each_reclassification_with_its_numbers(stagetree: Stagetree, store: tuple[Path, Study]) -> None:
    folder, study = store
    said = stagetree("replay", STUDY, "--dir", folder)
    lines = [line for line in said.out.splitlines() if "prioritize" in line]
    judgements = [event.reason for event in study.history if event.kind == "prioritize"]
    assert said.code == 0 and len(lines) == len(judgements) > 0
    for line, reason in zip(lines, judgements, strict=True):
        assert f"{reason['class']} after step {reason['steps']}: p {reason['p']} of 0.799, " in line
        assert f"{reason['own_slots']} of 2 slots theirs" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target": [0.5, 0.7]}, "target 0.7 reached: 0.7"),
        ({"max_time": 30}, "max_time is up: 30 seconds"),
        ({"target": 0.9}, None),
    ],
)
def test_a_study_that_its_tuner_ended_says_why(
    stagetree: Stagetree, tmp_path: Path, fields: dict[str, Any], said: str | None
) -> None:
    world = pop(**fields)
    world.run()
    folder, _ = store_study(tmp_path, world)
    found = stagetree("watch", STUDY, "--dir", folder)
    ended = [line for line in found.out.splitlines() if line.startswith("ended")]
    assert found.code == 0 and len(ended) == (said is not None)
    assert all(line.removeprefix("ended").strip().startswith(str(said)) for line in ended)


def test_replay_says_the_rung_of_a_stopping_rule_once(stagetree: Stagetree, tmp_path: Path) -> None:
    tuner = {"kind": "median", "num_trials": 8, "max_steps": 8, "interval": 2, "min_trials": 2}
    folder, _ = store_study(tmp_path, run_simulator(spec(tuner), slots=2))
    lines = [line for line in stagetree("replay", STUDY, "--dir", folder).out.splitlines() if "rung" in line]
    assert lines and all(line.count("rung") == 1 for line in lines)
