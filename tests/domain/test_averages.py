"""A node that begins with a mean of states: its name, its inputs, the states kept for it, and its replay."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain import events as e
from app.domain.accounting import cost
from app.domain.decide import decide, price_of
from app.domain.events import MeanShare
from app.domain.evolve import fold
from app.domain.search_plan import Trial
from app.domain.terms import Refused, average_id
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import assign, stages_of
from app.search.replay import replay
from app.simulation.simulator import Simulator
from stagetree.limits import LIMITS
from stagetree.trainer.tensors import mean_of
from tests.tuners.worlds import STUDY, faults, numbered_events, run_simulator, spec

LRS = [{"family": "multistep", "init": 0.1, "milestones": [10], "gamma": gamma} for gamma in (0.1, 0.2, 0.5)]


def train_three_trials(slots: int = 2, **options: Any) -> Simulator:
    """Three trials that part at step 10 and end at 20, 20 and 16."""
    trials = [{"hp": {"lr": lr, "bs": 4}, "steps": steps} for lr, steps in zip(LRS, (20, 20, 16), strict=True)]
    return run_simulator(spec({"kind": "trials", "trials": trials}, keep_every=5), slots=slots, **options)


def average_command(**fields: Any) -> c.AverageTrials:
    return c.AverageTrials(study=STUDY, time=100.0, **fields)


def newest(world: Simulator) -> Trial:
    return world.plan.studies[STUDY].trials[-1]


def lose_states(world: Simulator) -> None:
    for place in list(checkpoint_needs.checkpoints(world.plan)):
        world.take([e.CheckpointDropped(node=place.node, step=place.step, key=place.key, reason="lost")])


def test_an_average_is_evaluated_at_its_last_state_and_costs_no_step() -> None:
    world = train_three_trials()
    executed = world.plan.studies[STUDY].executed
    world.give(average_command(trials=(2, 0, 1)))
    trial = newest(world)
    assert world.plan.studies[STUDY].state == "running" and trial.requested_steps == [20]
    world.run()
    assert trial.state == "completed" and [step for step, _ in world.plan.curve(trial)] == [20]
    [node] = (world.plan.nodes[name] for name in trial.path)
    assert (node.parent, node.start, list(node.checkpoints)) == (None, 20, [20]) and node.id not in world.plan.roots
    assert world.plan.studies[STUDY].executed == executed
    found = cost(world.plan, world.plan.studies[STUDY])
    assert (found.run, found.steps_taken, found.unfinished) == (executed, 56, 0)
    assert replay(numbered_events(world.events), STUDY).identical


def test_equal_averages_are_one_node_in_any_order_of_requests() -> None:
    world = train_three_trials()
    world.give(average_command(trials=(0, 1, 2)))
    world.run()
    events = decide(world.plan, average_command(trials=(2, 1, 0), weights=(3.0, 3.0, 3.0)))
    assert [event.path for event in events if isinstance(event, e.TrialAdded)] == [{newest(world).path[0]: 20}]
    assert not any(isinstance(event, e.AverageNamed) for event in events), "an equal average is named once"
    other = decide(world.plan, average_command(trials=(2, 1, 0), weights=(1.0, 1.0, 2.0)))
    assert newest(world).path[0] not in [event.node for event in other if isinstance(event, e.AverageNamed)]


def test_training_from_an_average_is_shared_and_branched() -> None:
    world = train_three_trials()
    world.give(average_command(best=2, steps=25))
    world.run()
    executed = world.plan.studies[STUDY].executed
    world.give(average_command(best=2, steps=30))
    first, second = world.plan.studies[STUDY].trials[-2:]
    assert second.path[:2] == first.path and second.requested_steps == [newest(world).requested_steps[0], 30]
    world.give(c.BranchTrial(study=STUDY, trial=4, at=27, hp={"lr": 0.5}, steps=31, time=101.0))
    world.give(average_command(best=2, steps=24, hp={"lr": 0.5}))
    world.run()
    assert world.plan.studies[STUDY].executed - executed == 5 + 4 + 4
    assert {trial.state for trial in world.plan.studies[STUDY].trials} == {"completed"}
    with pytest.raises(Refused, match="at: must be at least 20, since trial 4 begins there as an average, got 12"):
        world.give(c.BranchTrial(study=STUDY, trial=4, at=12, hp={"lr": 0.5}, steps=31, time=101.0))
    assert replay(numbered_events(world.events), STUDY).identical


def test_averages_of_averages_and_of_the_last_states_of_a_trial() -> None:
    world = train_three_trials()
    world.give(average_command(trials=(0,), last=2))
    world.give(average_command(trials=(0, 1)))
    world.give(average_command(trials=(3, 4, 2)))
    world.run()
    study = world.plan.studies[STUDY]
    assert [each["step"] for each in study.trials[3].reason["average_of"]] == [20, 15]
    assert [each["trial"] for each in study.trials[5].reason["average_of"]][-1] == 2
    assert {trial.state for trial in study.trials} == {"completed"}


def test_lost_states_are_trained_again_at_the_quoted_price() -> None:
    world = train_three_trials()
    lose_states(world)
    executed, wanted = world.plan.studies[STUDY].executed, average_command(trials=(0, 1, 2), steps=22)
    price = price_of(world.plan, wanted, LIMITS)
    assert (price.steps, price.new, price.again) == (22, 2, 10 + 10 + 10 + 6)
    world.give(wanted)
    world.run()
    assert newest(world).state == "completed"
    assert world.plan.studies[STUDY].executed - executed == price.new + price.again


@pytest.mark.parametrize("first", [0, 1])
def test_retrained_states_use_the_values_of_a_trial_that_reached_them(first: int) -> None:
    """Once they had the values of the first trial of the node, which may have left it at an earlier step."""
    ways = [{"lr": LRS[2], "bs": 4}, {"lr": 0.1, "bs": 4}]
    stays, trials = 1 - first, [{"hp": hp, "steps": 20} for hp in (ways if first == 0 else ways[::-1])]
    world = run_simulator(spec({"kind": "trials", "trials": trials}), slots=1)
    lose_states(world)
    world.give(average_command(trials=(0, 1)))
    spans = [Span(world.plan.roots[0], 0, 20)]
    work = assign(Frontier(world.plan), spans, stages_of(world.plan, spans), 0)
    assert work.hp == world.plan.studies[STUDY].trials[stays].hp


@given(seed=st.integers(0, 10_000), slots=st.integers(1, 3))
def test_an_average_completes_and_its_states_stay_under_losses(seed: int, slots: int) -> None:
    """Workers die and states are lost; no kept state that the mean needs is released."""
    rng = Random(seed)
    world = train_three_trials(slots, faults=faults(seed, lose=0.2))
    world.give(average_command(trials=(0, 1, 2), steps=rng.choice([None, 23])))
    trial = newest(world)
    average = world.plan.nodes[trial.path[0]]
    while world.advance():
        if trial.state == "active" and not average.checkpoints:
            shares, used = world.plan.means[average.id], checkpoint_needs.required_keys(world.plan)
            kept = [world.plan.nodes[share.node].checkpoints.get(share.step) for share in shares]
            assert {each.key for each in kept if each is not None} <= used
        places = list(checkpoint_needs.checkpoints(world.plan))
        if places and rng.random() < 0.1 and not world.plan.chains:
            lost = rng.choice(places)
            world.take([e.CheckpointDropped(node=lost.node, step=lost.step, key=lost.key, reason="lost")])
    assert trial.state == "completed"
    again = fold(list(world.events))
    again.touched, world.plan.touched = set(), set()
    assert again.means == world.plan.means and again.nodes == world.plan.nodes
    assert replay(numbered_events(world.events), STUDY).identical


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "trials: must name the trials to average, or best say how many"),
        ({"trials": (0, 1), "best": 2}, "trials: must name the trials to average, or best say how many"),
        ({"best": 4}, "best: must be at most the 3 trials that have a result, got 4"),
        ({"trials": (0, 9)}, "study study has no trial 9"),
        ({"trials": (0, 0)}, "an average needs at least two different states"),
        ({"trials": (0,)}, "an average needs at least two different states"),
        ({"trials": (0, 1), "weights": (1.0,)}, "weights: must be as many as the 2 states, got 1"),
        ({"trials": (0, 1), "weights": (1.0, 0.0)}, "weights: must be finite and more than 0, got 1.0, 0.0"),
        ({"trials": (0, 1), "weights": (1.0, float("nan"))}, "weights: must be finite and more than 0"),
        ({"trials": (0, 1), "last": 2}, "last: must be of one trial, got 2"),
        ({"trials": (0,), "last": 9}, "last: must be from 2 to the number of states, got 9"),
        ({"trials": (0, 1), "steps": 20}, "steps: must be more than the 20 at which the average is, got 20"),
        ({"trials": (0, 1), "hp": {"lr": 1}}, "steps: must say for how many steps"),
        ({"trials": (0, 1), "hp": {"lt": 1}, "steps": 30}, "hp.lt: must be one of bs, lr"),
    ],
)
def test_invalid_averages_are_refused(fields: Any, problem: str) -> None:
    with pytest.raises(Refused) as refused:
        train_three_trials().give(average_command(**fields))
    assert str(refused.value).startswith(problem)


def test_an_averages_name_depends_on_states_and_weights() -> None:
    shares = (MeanShare("a", 2, 1.0), MeanShare("b", 2, 1.0))  # type: ignore[arg-type]
    for other in (MeanShare("b", 2, 2.0), MeanShare("b", 1, 1.0)):  # type: ignore[arg-type]
        assert average_id(shares) != average_id((shares[0], other))


# ------------------------------------------------------------------------------------------------------------ numbers


@given(
    seed=st.integers(0, 1000),
    number=st.integers(2, 6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
)
def test_the_mean_is_a_plain_mean_to_the_bit(seed: int, number: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(7, 3, generator=generator).to(dtype) for _ in range(number)]
    states = [{"model": {"w": w, "n": torch.tensor(i)}, "epoch": i} for i, w in enumerate(tensors)]
    found = mean_of(((state, 1.0) for state in states), ("model", "average"))
    plain = (sum(each.double() for each in tensors) / number).to(dtype)  # type: ignore[union-attr]
    assert torch.equal(found["model"]["w"], plain) and found["model"]["w"].dtype == dtype
    assert (found["epoch"], int(found["model"]["n"])) == (0, 0), "values without a mean come from the first state"
    weighted = mean_of(zip(states, range(1, number + 1), strict=True), ("model",))
    total = sum(each.double() * weight for weight, each in enumerate(tensors, 1))
    assert torch.equal(weighted["model"]["w"], (total / sum(range(1, number + 1))).to(dtype))  # type: ignore[union-attr]


def test_models_of_other_shapes_have_no_mean() -> None:
    one, other = ({"model": {"w": torch.zeros(shape)}} for shape in ((2,), (3,)))
    with pytest.raises(ValueError, match=r"models of different shapes have no mean: w is of shape \[2\] and of shape"):
        mean_of([(one, 1.0), (other, 1.0)], ("model",))
    with pytest.raises(ValueError, match="v is missing and of shape"):
        mean_of([(one, 1.0), ({"model": {**one["model"], "v": torch.zeros(2)}}, 1.0)], ("model",))
