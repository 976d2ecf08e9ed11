"""Traces: the results of a study as lines of JSON, and simulations that replay them."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest

from app.cli.export import trace_lines
from app.events.log import StoredEvent
from app.service.html_report import lines
from app.simulation.traces import STUDY as PLAYED
from app.simulation.traces import Player, Trace, Workload, read, record
from tests.tuners.worlds import STUDY, faults, losses, run_simulator, spec

RANDOM = {"kind": "random", "num_trials": 5, "max_steps": 6}


def trace(*values: float | None, seconds: float = 2.0) -> Trace:
    return Trace({}, tuple(range(1, len(values) + 1)), values, (seconds,) * len(values))


def workload(*traces: Trace) -> Workload:
    return Workload("w", "accuracy", "max", 4, traces)


RISING = workload(trace(0.1, 0.2, 0.3, 0.4), trace(0.2, 0.5, 0.7, 0.8), trace(0.3, None))


def test_recorded_results_are_written_and_read_back() -> None:
    world = run_simulator(spec(RANDOM, eval_every=2), seconds=lambda stage, number: 3.0 * (stage.end - stage.start))
    study = world.plan.studies[STUDY]
    found = read(json.dumps(line) for line in record(world.plan, study))
    assert (found.name, found.metric, found.mode, found.max_steps) == ("study", "loss", "min", 6)
    assert len(found.traces) == 5
    for trial, each in zip(study.trials, found.traces, strict=True):
        assert each.hp == trial.hp
        assert [each.steps, each.seconds] == [(2, 4, 6), (3.0, 3.0, 3.0)]
        assert each.values == tuple(metrics["loss"] for _, metrics in world.plan.curve(trial))


def test_a_trial_that_failed_ends_with_null() -> None:
    world = run_simulator(spec(RANDOM), measure=losses(1, nans=0.3), faults=faults(4, fail=0.2))
    study = world.plan.studies[STUDY]
    traces = {json.dumps(line["hp"]): line for line in list(record(world.plan, study))[1:]}
    for trial in study.trials:
        assert (traces[json.dumps(trial.hp)]["values"][-1] is None) == (trial.state == "failed")


def test_the_command_line_records_traces_from_a_log() -> None:
    world = run_simulator(spec(RANDOM))
    log = "".join(
        lines(StoredEvent(number, "plan", number, event, 0.0) for number, event in enumerate(world.events, 1))
    )
    assert [json.loads(line) for line in trace_lines(log, "study")] == list(
        record(world.plan, world.plan.studies[STUDY])
    )


@pytest.mark.parametrize("text", ["", '{"steps": [1]}'])
def test_invalid_recordings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the first line of recorded curves must have"):
        read([text])


def test_values_and_times_between_and_beyond_evaluations() -> None:
    uneven = Trace({}, (2, 6), (0.5, 0.7), (1.0, 3.0))
    assert [uneven.value(step) for step in (1, 2, 4, 6, 9)] == [0.5, 0.5, 0.5, 0.7, 0.7]
    assert [uneven.time(step) for step in (0, 1, 2, 3, 6, 7)] == [0, 1, 2, 5, 14, 17]


def test_time_runs_to_the_evaluation_that_reaches_the_target_not_to_the_end_of_its_stage() -> None:
    tuner = {"kind": "random", "num_trials": 3, "max_steps": 4}
    assert Player(RISING, tuner, slots=3, target=0.7).time_to_target() == 3 * 2.0
    assert Player(RISING, tuner, slots=1, target=0.7).time_to_target() == 4 * 2.0 + 3 * 2.0
    assert Player(RISING.select([1, 0, 2]), tuner, slots=1, target=0.7).time_to_target() == 3 * 2.0
    assert Player(RISING, tuner, slots=3, target=0.9).time_to_target() == inf


def test_only_a_later_resumption_costs_a_switch() -> None:
    tuner: dict[str, Any] = {"kind": "asha", "num_trials": 2, "min_steps": 1, "max_steps": 4, "eta": 2}
    workload_of_two = RISING.select([0, 1])
    free = Player(workload_of_two, tuner, slots=1, target=0.5)
    costly = Player(workload_of_two, tuner, slots=1, target=0.5, switch=0.5)
    assert free.time_to_target() == 1 * 2.0 + 2 * 2.0
    assert costly.time_to_target() == free.time_to_target(), "trial 1 continues right after its first step"
    other_way = Player(workload_of_two.select([1, 0]), tuner, slots=1, target=0.5, switch=0.5)
    assert other_way.time_to_target() == 1 * 2.0 + 2 * 2.0 + 0.5


def test_a_recorded_failure_fails_the_trial() -> None:
    tuner = {"kind": "asha", "num_trials": 3, "min_steps": 2, "max_steps": 4, "eta": 2}
    player = Player(RISING, tuner, slots=1, target=1)
    player.time_to_target()
    assert [trial.state for trial in player.simulator.plan.studies[PLAYED].trials].count("failed") == 1
