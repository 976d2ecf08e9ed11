"""Replay derives every decision again, and detects tampering; what-if only looks up recorded results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import Refused, StateConflict, StudyId
from app.events.memory import MemoryLog
from app.search.replay import replay
from app.search.replay.replaying import Judge
from app.service.html_report import NotALog, lines, parse
from app.simulation.simulator import Simulator
from app.simulation.what_if import what_if
from stagetree.limits import LIMITS
from stagetree.spec import SpecError
from stagetree.spec.file import change_fields
from tests.tuners.worlds import STUDY, faults, simulator, spec, stragglers

ASHA = {"kind": "asha", "num_trials": 40, "min_steps": 1, "max_steps": 27, "reduction_factor": 3}


@pytest.fixture(scope="module")
def world() -> Simulator:
    """An ASHA study with stragglers, failures and lost workers, at its end."""
    found = simulator(spec(ASHA), slots=5, seconds=stragglers(1), faults=faults(1, fail=0.03, lose=0.05))
    found.run()
    return found


def test_every_decision_is_derived_again(world: Simulator) -> None:
    found = replay(enumerate(world.events, 1), STUDY).to_json()
    assert found["identical"] and found["events"] == len(world.events)
    kinds = [line["kind"] for line in found["history"]]
    assert kinds.count("start") == 40 and kinds.count("promote") > 10 and kinds[-1] == "complete"
    assert found["decisions"] == kinds.count("start") + kinds.count("promote") + 1


def test_anyone_can_check_a_promotion(world: Simulator) -> None:
    """Algorithm 2 in ten lines over the history alone."""
    values: dict[int, dict[int, float]] = {}
    promoted: set[tuple[int, int]] = set()
    for line in replay(enumerate(world.events, 1), STUDY).history:
        if line["kind"] == "result":
            values.setdefault(line["rung"], {})[line["trial"]] = line["value"]
        elif line["kind"] == "fail":
            values.setdefault(line["rung"], {})[line["trial"]] = float("inf")
        elif line["kind"] == "promote":
            below = values[line["rung"] - 1]
            best = sorted(below, key=lambda trial: (below[trial], trial))[: len(below) // 3]
            waiting = [trial for trial in best if (line["rung"], trial) not in promoted]
            assert line["trial"] == waiting[0] and line["steps"] == 3 ** line["rung"]
            promoted.add((line["rung"], line["trial"]))


def test_studies_accepted_under_higher_limits_replay() -> None:
    long = {"kind": "random", "num_trials": 1, "max_steps": 2 * LIMITS.steps}
    Judge(spec(ASHA).to_json() | {"tuner": long})


@pytest.mark.parametrize("kind", [e.TrialExtended, e.TrialAdded])
def test_a_changed_decision_is_detected(world: Simulator, kind: type) -> None:
    number = [type(event) for event in world.events].index(kind)
    tampered = [*world.events]
    tampered[number] = replace(tampered[number], reason={**tampered[number].reason, "rung": 7})
    found = replay(enumerate(tampered, 1), STUDY)
    assert not found.identical and found.difference and found.difference["event"] == number + 1
    assert found.difference["recorded"] != found.difference["derived"]


def test_a_changed_result_is_detected(world: Simulator) -> None:
    """The log calls the best trial of the bottom rung the worst: it would not have been promoted."""
    first = next(event for event in world.events if isinstance(event, e.TrialExtended))
    node = world.plan.node_of(world.plan.studies[STUDY].trials[first.trial], 1).id

    def worse(event: e.Event) -> e.Event:
        hit = isinstance(event, e.Evaluated) and (event.node, event.step) == (node, 1)
        return replace(event, metrics={**event.metrics, "loss": 99.0}) if hit else event

    assert not replay(enumerate(map(worse, world.events), 1), STUDY).identical


def test_requests_of_users_replay_unchanged() -> None:
    """The tuner of docs/sdk.md, after HyperDrive's Figure 5.3: the user extends the same trial."""
    world = simulator(spec({"kind": "external"}))
    world.give(c.AddTrial(study=STUDY, hp={"lr": 0.1}, steps=5))
    world.run()
    world.give(c.AskForTrials(study=STUDY, actions=(c.Extend(trial=0, steps=10),)))
    world.run()
    found = replay(enumerate(world.events, 1), STUDY)
    assert found.identical and found.decisions == 0


@pytest.mark.parametrize("sampler", ["random", "grid", "sobol", "halton"])
def test_draws_are_derived_again(sampler: str) -> None:
    space = {"lr": [0.1, 0.2, 0.3, 0.4], "bs": [32, 64]}
    world = simulator(spec({**ASHA, "num_trials": 8, "sampler": sampler}, space=space))
    world.run()
    found = replay(enumerate(world.events, 1), STUDY)
    assert found.identical
    number = next(n for n, event in enumerate(world.events) if isinstance(event, e.TrialAdded) and event.trial == 5)
    tampered = [*world.events]
    tampered[number] = replace(tampered[number], hp={**tampered[number].hp, "lr": 0.25})
    difference = replay(enumerate(tampered, 1), STUDY).difference
    assert difference and difference["event"] == number + 1
    assert "0.25" in difference["problem"] and difference["recorded"]["hp"] != difference["derived"]["hp"]


def test_draws_with_another_seed_are_no_replay(world: Simulator) -> None:
    def change_seed(event: e.Event) -> e.Event:
        return replace(event, spec={**event.spec, "seed": 5}) if isinstance(event, e.StudySubmitted) else event

    assert not replay(enumerate(map(change_seed, world.events), 1), STUDY).identical


def test_a_replay_stops_at_the_given_event(world: Simulator) -> None:
    half = len(world.events) // 2
    found = replay(enumerate(world.events, 1), STUDY, at=half)
    whole = replay(enumerate(world.events, 1), STUDY)
    assert found.identical and found.events == half
    assert found.history == whole.history[: len(found.history)]
    assert all(line["event"] <= half for line in found.history)
    bottom = found.rungs()[0]
    assert bottom["rung"] == 0
    assert [each["value"] for each in bottom["trials"]] == sorted(each["value"] for each in bottom["trials"])


def test_an_exported_log_is_the_log(world: Simulator) -> None:
    log = MemoryLog()
    recorded = log.append("plan", world.events, expected=0, at=1.0)
    found = replay(parse(lines(recorded)), STUDY)
    assert found.to_json() == replay(((each.position, each.event) for each in recorded), STUDY).to_json()


@pytest.mark.parametrize("line", ["{", "{}", '{"position": 1, "type": "Nonsense", "schema": 1, "data": {}}'])
def test_an_invalid_log_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(NotALog, match="line 2"):
        list(parse(["\n", line]))


def calm(tuner: dict[str, Any] = ASHA, **options: Any) -> Simulator:
    found = simulator(spec(tuner), **options)
    found.run()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_what_if_nothing_changes_makes_no_difference(seed: int) -> None:
    """For any number of slots, and any length of stages."""
    world = calm(slots=8, seconds=stragglers(seed), faults=faults(seed, fail=0.03, lose=0.05))
    found = what_if(world.events, STUDY, {})
    study = world.plan.studies[STUDY]
    assert (found["saved"], found["needed"], found["not_known"]) == (0, 0, 0)
    assert (found["unique"], found["trials"]) == (study.unique, len(study.trials))


def test_what_if_fewer_are_promoted() -> None:
    world = calm(slots=1)
    strict, loose = (what_if(world.events, STUDY, {"tuner.reduction_factor": eta}) for eta in (9, 2))
    assert strict["saved"] > 0 and strict["needed"] == 0
    assert loose["needed"] > 0
    assert strict["unique"] < world.plan.studies[STUDY].unique < loose["unique"]


def test_what_if_fewer_trials_ranked_by_cooldowns_are_promoted() -> None:
    """The replay takes the configurations from the study's trunks, in their order."""
    world = calm({**ASHA, "rung_value": {"cooldown": 2}}, slots=1)
    found = what_if(world.events, STUDY, {"tuner.max_steps": 9})
    assert (found["needed"], found["not_known"]) == (0, 0) and found["saved"] > 0


def test_what_if_needs_untrained_steps() -> None:
    """A grid of 5 steps, in which a sequence changes at step 6, is imagined longer: an unknown result fails nothing."""
    late = {"family": "values", "values": [0.1, 0.01], "milestones": [6]}
    world = simulator(spec({"kind": "grid", "max_steps": 5}, space={"lr": [late, 0.1, 0.2]}))
    world.run()
    found = what_if(world.events, STUDY, {"tuner.max_steps": 8})
    assert (found["trials"], found["needed"], found["not_known"]) == (3, 3 + 3 + 2, 3)
    assert found["best"] is None, "no trial has a result at step 8"


def test_what_if_there_were_more_trials() -> None:
    world = calm(slots=4)
    found = what_if(world.events, STUDY, {"tuner.num_trials": 50})
    assert found["trials"] == 50 and found["saved"] == 0 and found["needed"] > 0
    assert found["best"] is not None


def test_what_if_another_tuner_needs_no_other_change_than_its_own_fields() -> None:
    world = calm({**ASHA, "early_stopping_rate": 0}, slots=4)
    found = what_if(world.events, STUDY, {"tuner.kind": "median", "tuner.interval": 3})
    assert found["trials"] == 40


def test_what_if_others_train_on_the_same_plan() -> None:
    world = simulator(spec(ASHA), slots=3, seconds=stragglers(4))
    world.submit(StudyId("other"), spec({**ASHA, "num_trials": 20}).to_json())
    world.run()
    assert what_if(world.events, STUDY, {})["saved"] == 0
    assert what_if(world.events, STUDY, {"tuner.reduction_factor": 9})["saved"] > 0


def test_what_if_the_study_file_would_be_wrong() -> None:
    with pytest.raises(SpecError, match=r"tuner\.reduction_factor"):
        what_if(calm(slots=1).events, STUDY, {"tuner.reduction_factor": 1})


def test_changes_go_by_path() -> None:
    before = {"mode": "min", "tuner": {"kind": "asha", "min_steps": 1}}
    assert change_fields(before, {"tuner.min_steps": 3, "mode": None}) == {"tuner": {"kind": "asha", "min_steps": 3}}
    assert json.dumps(before) == '{"mode": "min", "tuner": {"kind": "asha", "min_steps": 1}}'


def test_a_reopened_study_keeps_its_promotions_and_widens_its_rungs() -> None:
    world = simulator(spec({**ASHA, "num_trials": 20}), slots=3, seconds=stragglers(2))
    world.run()
    before = [line for line in replay(enumerate(world.events, 1), STUDY).history if line["kind"] != "complete"]
    steps = world.plan.studies[STUDY].executed
    world.give(c.ReopenStudy(study=STUDY, trials=60, at=0.0))
    world.run()
    study = world.plan.studies[STUDY]
    found = replay(enumerate(world.events, 1), STUDY)
    assert (study.state, len(study.trials)) == ("completed", 60)
    assert found.identical and found.history[: len(before)] == before
    assert study.executed == study.unique > steps
    assert len(found.rungs()[0]["trials"]) == 60


@pytest.mark.parametrize(
    ("tuner", "trials", "sentence"),
    [
        ({**ASHA, "num_trials": 20}, 20, "more than the 20"),
        ({"kind": "sha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "reduction_factor": 3}, 18, "cannot grow"),
    ],
)
def test_studies_that_cannot_be_reopened(tuner: dict[str, Any], trials: int, sentence: str) -> None:
    world = simulator(spec(tuner))
    with pytest.raises(StateConflict, match="only a completed study can be reopened"):
        world.give(c.ReopenStudy(study=STUDY, trials=trials, at=0.0))
    world.run()
    with pytest.raises(Refused, match=sentence):
        world.give(c.ReopenStudy(study=STUDY, trials=trials, at=0.0))
