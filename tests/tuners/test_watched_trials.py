"""Trials that are watched on the way: ASHA by predictions, and hopeless trials that end under any tuner."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from app.domain import events as e
from app.domain.commands import Extend
from app.domain.search_plan import Node, Study, TrialEvent
from app.domain.terms import TrialEventKind
from app.search.replay import replay
from app.search.tuners.base import REGISTERED, NewTrial, Next, Registered, Tuner
from app.simulation.simulator import Simulator
from stagetree.spec import SpecError, StudySpec
from tests.tuners.worlds import STUDY, faults, numbered_events, simulator, spec

pytestmark = pytest.mark.slow

ENDS = [round(0.2 + 0.06 * number, 2) for number in range(12)]
SPACE = {"end": ENDS}
HOPELESS = {"boundary": 4, "bounds": [0, 1], "delta": 0.2}
TUNERS: dict[str, dict[str, Any]] = {
    "random": {"kind": "random", "num_trials": 12, "max_steps": 20},
    "grid": {"kind": "grid", "max_steps": 20},
    "sha": {"kind": "sha", "num_trials": 12, "min_steps": 5, "max_steps": 20, "eta": 2},
    "asha": {"kind": "asha", "num_trials": 12, "min_steps": 8, "max_steps": 20, "eta": 2},
    "asha: predicted": {"kind": "asha", "num_trials": 12, "min_steps": 8, "max_steps": 20, "promote_by": "predicted"},
    "hyperband": {"kind": "hyperband", "min_steps": 5, "max_steps": 20, "eta": 2},
    "async_hyperband": {"kind": "async_hyperband", "num_trials": 12, "min_steps": 5, "max_steps": 20, "eta": 2},
    "median": {"kind": "median", "num_trials": 12, "max_steps": 20, "interval": 10, "min_steps": 10},
    "bandit": {"kind": "bandit", "num_trials": 12, "max_steps": 20, "interval": 10, "epsilon": 3.0},
    "asha for ever": {"kind": "asha", "num_trials": 12, "min_steps": 8, "eta": 2},
    "trials": {"kind": "trials", "trials": [{"hp": {"end": end}, "steps": 16 + (end > 0.5) * 4} for end in ENDS]},
    "custom": {"kind": "custom", "name": "in-turn"},
}
POPULATION = {"kind": "pbt", "population_size": 4, "ready_steps": 4, "max_steps": 8}
EVERY = pytest.mark.parametrize("tuner", TUNERS.values(), ids=TUNERS)


class InTurn(Tuner):
    """Twelve trials for 8 steps, and each that did not fail for 20."""

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        self.started, self.waiting = 0, list[int]()

    def observe(self, event: TrialEvent) -> None:
        match event.kind:
            case TrialEventKind.START:
                self.started += 1
            case TrialEventKind.RESULT if event.steps == 8:
                self.waiting.append(event.trial)
            case TrialEventKind.PROMOTE:
                self.waiting.remove(event.trial)

    def suggest(self) -> Next | None:
        if self.waiting:
            return Extend(trial=self.waiting[0], steps=20)
        return NewTrial(steps=8) if self.started < 12 else None


@pytest.fixture(autouse=True)
def register_in_turn() -> Iterator[None]:
    REGISTERED["in-turn"] = Registered(InTurn, "1")
    yield
    del REGISTERED["in-turn"]


def rising(node: Node, step: int) -> e.Metrics:
    """Accuracies that rise fast and level off at `end`."""
    end = node.segment.values(node.start)["end"]
    assert isinstance(end, float)
    return {"accuracy": end * (1 - math.exp(-step / 3))}


def study(tuner: dict[str, Any], **fields: Any) -> StudySpec:
    sampled: dict[str, Any] = (
        {} if tuner["kind"] in ("random", "grid", "trials") else {"sampler": "random", "sampling_seed": 3}
    )
    sampled |= {} if tuner["kind"] in ("grid", "trials") else {"distinct": False}
    if "stop_hopeless" in fields and "max_steps" not in tuner:
        fields["stop_hopeless"] = fields["stop_hopeless"] | {"max_steps": 20}
    settings: dict[str, Any] = {"metric": "accuracy", "mode": "max", "merge": False, "eval_every": 1}
    return spec(tuner | sampled, space=SPACE, **(settings | fields))


def run(spec: StudySpec, **options: Any) -> Study:
    """The study at its end, replayed."""
    world: Simulator = simulator(spec, slots=3, **({"measure": rising} | options))
    world.run()
    found = replay(numbered_events(world.events), STUDY)
    assert found.identical, found.difference
    ended = world.plan.studies[STUDY]
    assert ended.is_final and ended.active == 0
    return ended


def hopeless_stops(found: Study) -> list[TrialEvent]:
    return [event for event in found.history if event.kind == TrialEventKind.STOP and "delta" in event.reason]


@EVERY
def test_hopeless_trials_end_under_any_tuner_and_fewer_steps_are_run(tuner: dict[str, Any]) -> None:
    plain, found = run(study(tuner)), run(study(tuner, stop_hopeless=HOPELESS))
    assert hopeless_stops(found) and found.executed < plain.executed
    for event in hopeless_stops(found):
        assert event.reason["p"] < event.reason["delta"] == 0.2 and found.trials[event.trial].steps % 4 == 0


@EVERY
def test_without_hopeless_trials_the_tuner_decides_alone(tuner: dict[str, Any]) -> None:
    def requested_steps(found: Study) -> list[int]:
        return [trial.steps for trial in found.trials]

    assert requested_steps(run(study(tuner, stop_hopeless=HOPELESS | {"delta": 0}))) == requested_steps(
        run(study(tuner))
    )


@EVERY
def test_failures_lost_workers_and_nan(tuner: dict[str, Any]) -> None:
    def measure_with_nans(node: Node, step: int) -> e.Metrics:
        return {"accuracy": None} if node.segment.values(0)["end"] == ENDS[-1] and step > 5 else rising(node, step)

    run(study(tuner, stop_hopeless=HOPELESS), measure=measure_with_nans, faults=faults(1, fail=0.02, lose=0.1))


def test_the_best_is_not_hopeless() -> None:
    found = run(study(TUNERS["grid"], stop_hopeless=HOPELESS))
    assert found.trials[ENDS.index(max(ENDS))].state == "completed"


def crossing(node: Node, step: int) -> e.Metrics:
    """The later the better: who ends highest rises slowest."""
    end = node.segment.values(node.start)["end"]
    assert isinstance(end, float)
    return {"accuracy": end * (1 - math.exp(-step / (60 * end**3)))}


def test_asha_by_prediction_promotes_trials_that_will_be_ahead() -> None:
    tuner = {"kind": "asha", "num_trials": 60, "min_steps": 16, "max_steps": 80, "eta": 4}
    by_result = run(study(tuner), measure=crossing)
    by_prediction = run(study(tuner | {"promote_by": "predicted", "bounds": [0, 1]}), measure=crossing)

    def came_to(found: Study) -> float:
        whole = [event for event in found.history if event.kind == TrialEventKind.RESULT and event.steps == 80]
        return max(event.metrics["accuracy"] or 0 for event in whole)

    assert came_to(by_prediction) > came_to(by_result)


@pytest.mark.parametrize(
    ("tuner", "fields", "field"),
    [
        ({"kind": "pop", "num_trials": 4, "max_steps": 8}, {"stop_hopeless": {}}, "stop_hopeless"),
        ({"kind": "early_term", "num_trials": 4, "max_steps": 8}, {"stop_hopeless": {}}, "stop_hopeless"),
        (
            {"kind": "pbt", "population_size": 4, "ready_steps": 4, "max_steps": 8},
            {"stop_hopeless": {}},
            "stop_hopeless",
        ),
        ({"kind": "external"}, {"stop_hopeless": {"max_steps": 8}}, "stop_hopeless"),
        ({"kind": "asha", "num_trials": 4, "min_steps": 1}, {"stop_hopeless": {}}, "stop_hopeless.max_steps"),
        ({"kind": "custom", "name": "in-turn"}, {"stop_hopeless": {}}, "stop_hopeless.max_steps"),
        ({"kind": "grid", "max_steps": 8}, {"stop_hopeless": {"max_steps": 8}}, "stop_hopeless.max_steps"),
        ({"kind": "grid", "max_steps": 8}, {"stop_hopeless": {"bounds": [1, 0]}}, "stop_hopeless.bounds"),
        ({"kind": "grid", "max_steps": 8}, {"stop_hopeless": {"delta": 2}}, "stop_hopeless.delta"),
        (TUNERS["asha: predicted"] | {"type": "stopping"}, {}, "tuner.promote_by"),
        ({"kind": "asha", "num_trials": 4, "min_steps": 1, "promote_by": "predicted"}, {}, "tuner.max_steps"),
    ],
)
def test_incompatible_arguments_are_refused(tuner: dict[str, Any], fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(tuner, space=SPACE, **fields)
    assert [problem.field for problem in refused.value.problems] == [field]


def test_neither_is_written_where_it_was_not_asked_for() -> None:
    written = study(TUNERS["asha"]).to_json()
    assert "stop_hopeless" not in written and "promote_by" not in written["tuner"]


@pytest.mark.parametrize("keep_top", [0.0, 1 / 3, 1.0])
def test_the_best_of_those_that_came_to_a_step_are_not_ended(keep_top: float) -> None:
    """With a delta of 1 all others are."""
    hopeless = HOPELESS | {"delta": 1.0, "keep_top": keep_top}
    found = run(study(TUNERS["random"], stop_hopeless=hopeless))
    ends, values = 0, defaultdict[int, list[float]](list)
    for event in found.history:
        if event.kind == TrialEventKind.RESULT:
            values[event.steps].append(event.metrics["accuracy"] or 0.0)
        elif event.kind == TrialEventKind.STOP and "delta" in event.reason:
            own = next(e for e in found.history if e.kind == TrialEventKind.RESULT and (e.trial, e.steps) == at(event))
            better = sum(value > (own.metrics["accuracy"] or 0.0) for value in values[event.steps])
            assert better >= keep_top * len(values[event.steps]), "it was among the best"
            ends += 1
    assert (ends == 0) == (keep_top == 1.0)


def at(event: TrialEvent) -> tuple[int, int]:
    return event.trial, event.steps


@pytest.mark.parametrize(
    ("tuner", "fields", "field"),
    [
        ({"kind": "pop", "num_trials": 4, "max_steps": 8, "keep_top": 1.5}, {}, "tuner.keep_top"),
        ({"kind": "early_term", "num_trials": 4, "max_steps": 8, "keep_top": -0.1}, {}, "tuner.keep_top"),
        ({"kind": "grid", "max_steps": 8}, {"stop_hopeless": {"keep_top": "third"}}, "stop_hopeless.keep_top"),
        ({"kind": "pop", "num_trials": 4, "max_steps": 8, "order_by": "luck"}, {}, "tuner.order_by"),
    ],
)
def test_unknown_parts_are_refused_in_a_sentence(tuner: dict[str, Any], fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(tuner, space=SPACE, **fields)
    (problem,) = refused.value.problems
    assert problem.field == field and problem.problem.startswith("must be ")
