"""The overheads of slots and the scheduler, and the order of events that follows from them."""

from __future__ import annotations

from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Node
from app.scheduling.costs import Costs
from app.simulation.pace import Overheads
from app.simulation.simulator import Simulator
from tests.tuners.worlds import STUDY, run_simulator, simulator, spec

THREE = {"kind": "random", "num_trials": 3, "max_steps": 5}
HALVES = {"kind": "asha", "num_trials": 4, "min_steps": 1, "max_steps": 4, "reduction_factor": 2}


def stage_ends(world: Simulator) -> list[float]:
    """The times at which stages ended, counted from the first assignment."""
    log = world.log()
    begun = next(each.at for each in log if isinstance(each.event, e.ChainAssigned))
    return [round(each.at - begun, 6) for each in log if isinstance(each.event, e.StageCompleted)]


def test_chains_of_one_tick_begin_one_after_the_other() -> None:
    world = run_simulator(spec(THREE), slots=3, overheads=Overheads(give=0.1, begin=0.5))
    assert stage_ends(world) == [5.5, 5.6, 5.7]
    at_once = run_simulator(spec(THREE), slots=3, overheads=Overheads(begin=0.5))
    assert stage_ends(at_once) == [5.5, 5.5, 5.5]


def decisions(overheads: Overheads) -> list[str]:
    """Of ASHA on two slots, whose second trial is better and 0.05 s later than the first."""

    def measure(node: Node, step: int) -> e.Metrics:
        return {"loss": 0.1 if number(node) == 1 else 0.5 + number(node)}

    def number(node: Node) -> int:
        study = world.plan.studies[STUDY]
        return next(trial.number for trial in study.trials if node.id in trial.path)

    def seconds(stage: e.Stage, count: int) -> float:
        return (stage.end - stage.start) * (1.05 if count == 1 else 1.0)

    world = simulator(spec(HALVES), slots=2, measure=measure, seconds=seconds, overheads=overheads)
    world.run()
    assert world.plan.studies[STUDY].state == "completed"
    return [_decision_text(each) for each in world.events if isinstance(each, e.TrialAdded | e.TrialExtended)]


def _decision_text(event: Any) -> str:
    return f"{'start' if isinstance(event, e.TrialAdded) else 'promote'} {event.trial}"


def test_events_before_a_tick_are_handled_together() -> None:
    """The first result alone lets a new trial begin; both together promote the better one."""
    assert decisions(Overheads())[2:4] == ["start 2", "promote 1"]
    assert decisions(Overheads(look=0.1))[2:4] == ["promote 1", "start 2"]


def test_a_chain_waits_for_a_state_that_is_being_saved() -> None:
    """The stage ends before that state is stored. Once the idle slot trained the same steps again."""
    world = simulator(spec({"kind": "external"}), slots=2, overheads=Overheads(upload=10.0))
    decay = {"family": "multistep", "init": 0.1, "milestones": [2], "gamma": 0.1}
    world.give(c.AskForTrials(study=STUDY, actions=(c.Start(hp={"lr": 0.1}, steps=4),)))
    world.run_until(0.5)
    world.give(c.AskForTrials(study=STUDY, actions=(c.Start(hp={"lr": decay}, steps=3),)))
    world.run()
    study = world.plan.studies[STUDY]
    assert study.active == 0 and study.executed == study.unique == 5


def test_a_slow_scheduler_completes_all_work() -> None:
    slow = Overheads(look=0.7, give=0.3, begin=0.2, load=0.2, resume=0.1, hand_over=0.1, upload=0.4)
    world = run_simulator(spec(HALVES), slots=2, overheads=slow)
    study = world.plan.studies[STUDY]
    assert study.state == "completed" and not world.plan.chains


def test_time_before_a_stage_does_not_count_as_its_own() -> None:
    """Claims and hand-overs are the scheduler's and the broker's time; loading a state is the stage's own."""
    world = simulator(spec({"kind": "external"}), slots=1, overheads=Overheads(claim=0.5, hand_over=0.25, begin=0.125))
    decay = {"family": "multistep", "init": 0.1, "milestones": [2], "gamma": 0.1}
    world.give(c.AskForTrials(study=STUDY, actions=(c.Start(hp={"lr": decay}, steps=3),)))
    world.run()
    assert [each.seconds for each in world.events if isinstance(each, e.StageCompleted)] == [2.125, 1.0]
    assert stage_ends(world) == [2.625, 3.875]


def test_the_longest_work_goes_first_once_costs_are_measured() -> None:
    def seconds(stage: e.Stage, number: int) -> float:
        return (stage.end - stage.start) * value(stage)

    def value(stage: e.Stage) -> float:
        node = world.plan.nodes[stage.node]
        return float(node.segment.values(0)["lr"])  # type: ignore[arg-type]

    world = simulator(spec({"kind": "external"}), slots=1, seconds=seconds, make_costs=Costs)
    for values in ((1, 10), (2, 8, 5), (3, 7, 4)):
        world.give(c.AskForTrials(study=STUDY, actions=tuple(c.Start(hp={"lr": each}, steps=4) for each in values)))
        world.run()
    begun = [value(each.stages[0]) for each in world.events if isinstance(each, e.ChainAssigned)]
    assert begun[2:] == [8, 5, 2, 7, 4, 3]


def test_a_slot_freed_during_a_tick_gets_work_from_the_next_tick() -> None:
    """The first slot is free after 5 seconds, the other half a second later, during the tick for the first."""

    def seconds(stage: e.Stage, number: int) -> float:
        return 5.5 if number == 1 else 5.0

    four = {"kind": "random", "num_trials": 4, "max_steps": 5}
    world = run_simulator(spec(four), slots=2, seconds=seconds, overheads=Overheads(look=1.0))
    assert stage_ends(world) == [5.0, 5.5, 5.0 + 1.0 + 5.0, 5.0 + 2 * 1.0 + 5.0]
