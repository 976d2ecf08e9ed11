"""What goes when there are too many checkpoints, and what never does."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.domain import checkpoint_needs, results
from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Node, PlacedCheckpoint, SearchPlan
from app.scheduling.costs import Costs
from app.scheduling.frontier import Frontier
from app.scheduling.retention import deletion_order, select_checkpoints
from tests.plans import METRIC, Story, max_examples, steps
from tests.tuners.worlds import STUDY, simulator, spec


class Seconds(Costs):
    """Steps of known length."""

    def refit(self, plan: SearchPlan) -> bool:
        return False

    def seconds_per_step(self, node: Any, gpu: str | None = None) -> float:
        return 1.0


def going(story: Story) -> list[tuple[str, int]]:
    return [(kept.node, kept.step) for kept in deletion_order(story.plan, Seconds())]


def release(story: Story, *chosen: PlacedCheckpoint) -> tuple[e.Event, ...]:
    return story.give(c.ReleaseCheckpoints(checkpoints=chosen, reason="budget"))


def finished_story(*trials: tuple[dict[str, Any], int], **fields: Any) -> Story:
    """A study of these trials, trained to its end."""
    story = Story()
    story.submit(*trials, **fields)
    story.drain(Frontier(story.plan))
    return story


TRUNK = [({"lr": steps(0.1, value, milestones=[4])}, 10) for value in (0.2, 0.3, 0.4)]
"""Three trials that part at step 4."""


def test_checkpoints_cheap_to_retrain_are_deleted_first() -> None:
    story = finished_story(({"lr": 1}, 2), ({"lr": 2}, 20), ({"lr": 3}, 10), keep_best=0)
    ends = [story.trial(study, number) for study in story.plan.studies for number in range(3)]
    assert going(story) == [(ends[number].path[-1], ends[number].steps) for number in (0, 2, 1)]


def test_a_state_ten_times_as_large_is_worth_a_tenth() -> None:
    story = finished_story(({"lr": 1}, 2), ({"lr": 2}, 10), keep_best=0)
    [small, large] = [story.path(study, number)[0] for study in story.plan.studies for number in range(2)]
    story.happen(e.CheckpointKept(node=large.id, step=10, key="large", sha256="", size=100))
    assert going(story) == [(large.id, 10), (small.id, 2)]


def test_the_cost_of_a_checkpoint_rises_when_its_neighbour_is_deleted() -> None:
    """One at 9, 10 and 20 steps: 10 is one step behind 9, until that is gone."""
    story = finished_story(({"lr": 1}, 20), ({"lr": 2}, 9), keep_best=0)
    [node] = story.path(next(iter(story.plan.studies)))
    story.keep(node.id, 9, intermediate=True)
    story.keep(node.id, 10, intermediate=True)
    assert [step for name, step in going(story) if name == node.id] == [10, 9, 20]


def test_the_final_states_of_the_best_are_promised() -> None:
    story = Story()
    study = story.submit(({"lr": 1}, 5), ({"lr": 2}, 5), ({"lr": 3}, 5), keep_best=2)
    for number, value in enumerate((0.1, 0.9, 0.5)):
        story.train(chain := story.assign((story.path(study, number)[0], 0, 5)), value=value)
        story.keep(story.path(study, number)[0].id, 5)
        story.end(chain)
    assert going(story) == [(story.path(study, 0)[0].id, 5)]
    assert not release(
        story, *[kept for kept in checkpoint_needs.checkpoints(story.plan) if kept.node != going(story)[0][0]]
    )


def test_those_of_which_no_open_study_has_trials_go_before_the_others() -> None:
    story = finished_story(({"lr": 1}, 50), name="over", keep_best=0)
    story.give(c.CloseStudy(study=next(iter(story.plan.studies)), at=1.0))
    open_study = story.submit(({"lr": 2}, 3), keep_best=0)
    story.drain(Frontier(story.plan))
    assert going(story)[-1] == (story.path(open_study)[0].id, 3)


def test_of_equal_ones_the_state_of_the_trial_that_ranks_last_goes_first() -> None:
    story = Story()
    study = story.submit(*(({"lr": number}, 5) for number in range(4)), keep_best=0)
    for number, value in enumerate((0.4, 0.1, 0.9, 0.5)):
        story.train(chain := story.assign((story.path(study, number)[0], 0, 5)), value=value)
        story.keep(story.path(study, number)[0].id, 5)
        story.end(chain)
    assert going(story) == [(story.path(study, number)[0].id, 5) for number in (1, 0, 3, 2)]


def test_states_needed_by_chains_and_requests_stay() -> None:
    story = Story()
    study = story.submit(*TRUNK, keep_best=0)
    frontier = Frontier(story.plan)
    frontier.refresh()
    chain = story.take(frontier)
    assert chain is not None
    story.finish(chain)
    trunk = story.path(study)[0]
    assert (trunk.id, 4) not in going(story)  # two trials wait for what follows
    for number in (1, 2):
        frontier.refresh()
        chain = story.take(frontier)
        assert chain is not None and (trunk.id, 4) not in going(story), number
        if number == 1:
            story.finish(chain)
    kept = PlacedCheckpoint(trunk.id, 4, trunk.checkpoints[4])
    assert not release(story, kept)  # the last one begins with it
    story.finish(chain)
    assert release(story, kept)


def test_a_checkpoint_that_a_chains_row_names_stays() -> None:
    story = finished_story(({"lr": 1}, 5), keep_best=0)
    [kept] = checkpoint_needs.checkpoints(story.plan)
    named = c.ReleaseCheckpoints(checkpoints=(kept,), reason="budget", assigned_keys=frozenset([kept.key]))
    assert not story.give(named)


def test_in_two_steps_it_is_released_and_then_gone() -> None:
    story = finished_story(({"lr": 1}, 5), keep_best=0)
    [kept] = checkpoint_needs.checkpoints(story.plan)
    assert story.plan.kept_bytes == 1
    release(story, kept)
    assert (story.plan.kept_bytes, list(story.plan.released)) == (0, [kept.key])
    assert not release(story, kept)
    story.give(c.RecordDeleted(keys=(kept.key,)))
    assert not story.plan.released
    assert not story.give(c.RecordDeleted(keys=(kept.key,)))


def test_of_two_states_at_one_place_the_first_is_released() -> None:
    """Two workers that knew nothing of each other kept both."""
    story = finished_story(({"lr": 1}, 5), keep_best=0)
    [kept] = checkpoint_needs.checkpoints(story.plan)
    story.keep(kept.node, kept.step)
    assert list(story.plan.released) == [kept.key] and story.plan.kept_bytes == 1


def test_no_more_goes_than_must() -> None:
    story = finished_story(*(({"lr": number}, number) for number in range(1, 6)), keep_best=0)
    assert len(select_checkpoints(story.plan, Seconds(), excess=3, most=10)) == 3
    assert len(select_checkpoints(story.plan, Seconds(), excess=3, most=2)) == 2
    assert select_checkpoints(story.plan, Seconds(), excess=0, most=10) == []


def test_states_of_a_deleted_study_only_are_free() -> None:
    story = finished_story(*TRUNK[:2], name="deleted", keep_best=2)
    deleted = next(iter(story.plan.studies))
    other = story.submit(TRUNK[1], TRUNK[2], keep_best=0)
    story.drain(Frontier(story.plan))
    assert not list(checkpoint_needs.orphaned_checkpoints(story.plan))
    story.give(c.CloseStudy(study=deleted, at=1.0))
    story.give(c.DeleteStudy(study=deleted, at=2.0))
    own = story.plan.studies[deleted].trials[0].path[-1]
    assert [(kept.node, kept.step) for kept in checkpoint_needs.orphaned_checkpoints(story.plan)] == [(own, 10)]
    assert story.plan.metrics(story.trial(other), 10)


@max_examples(60)
@given(seed=st.integers(0, 10**9))
def test_the_least_valuable_checkpoint_is_deleted_each_time(seed: int) -> None:
    """As an order that is worked out anew after each one that goes would have it."""
    rng = Random(seed)
    story = Story()
    hps = [{"lr": steps(0.1, rng.choice([0.2, 0.3]), rng.random(), milestones=[3, 6])} for _ in range(6)]
    story.submit(*((hp, rng.randint(1, 12)) for hp in hps), keep_best=rng.randint(0, 2))
    story.drain(Frontier(story.plan))
    for node in story.plan.nodes.values():
        if rng.random() < 0.5:
            story.keep(node.id, node.start + 1, intermediate=True)
    order = going(story)
    for place in order:
        [kept] = [kept for kept in checkpoint_needs.checkpoints(story.plan) if (kept.node, kept.step) == place]
        assert going(story)[0] == place
        assert release(story, kept)
    assert not going(story)


# ------------------------------------------------------------------------------------------------ kept on purpose


@max_examples(40)
@given(st.data())
def test_states_that_a_study_keeps_stay_until_its_deletion(data: st.DataObject) -> None:
    rng = Random(data.draw(st.integers(0, 2**32)))
    fields = {"keep_at": sorted(rng.sample(range(1, 12), rng.randint(0, 3))), "keep_every": rng.choice([None, 3, 4])}
    story = Story()
    hps = [{"lr": steps(0.1, value, milestones=[rng.randint(1, 9)])} for value in (0.2, 0.3, 0.4)]
    lengths = [rng.randint(1, 12) for _ in hps]
    study = story.submit(*zip(hps, lengths, strict=True), keep_best=0, **{k: v for k, v in fields.items() if v})
    story.drain(Frontier(story.plan))
    for kept in story.plan.nodes.values():  # as its chains have orders to
        for step in checkpoint_needs.steps_to_keep(story.plan, kept.id, kept.start, 12):
            story.keep(kept.id, step)
    wanted = {*fields["keep_at"], *range(fields["keep_every"] or 99, 13, fields["keep_every"] or 99)}
    for number, length in enumerate(lengths):
        states = checkpoint_needs.states_of(story.plan, story.trial(study, number))
        assert {step for step in wanted if step <= length} <= states.keys()
    there = {(kept.node, kept.step) for kept in checkpoint_needs.checkpoints(story.plan)}
    assert {step for _, step in there - set(going(story))} <= wanted
    assert not [step for _, step in going(story) if step in wanted]
    story.give(c.CloseStudy(study=study, at=1.0))
    story.give(c.DeleteStudy(study=study, at=2.0))
    assert there == set(going(story))


def test_nothing_is_kept_twice_or_behind_the_end_of_a_trial() -> None:
    story = finished_story(({"lr": 1}, 10), keep_best=0, keep_every=4)
    [node] = [node for study in story.plan.studies for node in story.path(study)]
    assert checkpoint_needs.steps_to_keep(story.plan, node.id, 0, 99) == [4, 8]
    story.keep(node.id, 4)
    assert checkpoint_needs.steps_to_keep(story.plan, node.id, 0, 99) == [8]
    assert checkpoint_needs.steps_to_keep(story.plan, node.id, 4, 7) == []


@max_examples(30)
@given(st.integers(0, 10**6), st.sampled_from([1, 3]))
def test_the_best_state_of_each_trial_is_kept_where_its_value_is_the_best_result(seed: int, slots: int) -> None:
    """With trials that share beginnings, and with all that is kept on purpose left out of it."""
    rng = Random(seed)
    drawn = {(trial, step): rng.random() for trial in range(64) for step in range(40)}
    space = {"lr": [steps(0.1, value, milestones=[rng.randint(1, 20)]) for value in (0.2, 0.3, 0.4)]}
    tuner = {"kind": "asha", "num_trials": 3, "sampler": "grid", "min_steps": 8, "max_steps": 32, "eta": 2}

    def measure(node: Node, step: int) -> dict[str, float | None]:
        return {"loss": drawn[int(node.id[:6], 16) % 64, step]}

    world = simulator(spec(tuner, space=space, value="best", eval_every=3), slots=slots, measure=measure)
    world.run()
    study = world.plan.studies[STUDY]
    for trial in study.trials:
        value = results.result(world.plan, study, trial)
        assert value is not None and value.step in checkpoint_needs.states_of(world.plan, trial), (trial.number, value)


def test_the_best_state_that_was_lost_is_kept_when_it_is_trained_again() -> None:
    story = Story()
    [node] = story.path(story.submit(({"lr": 1}, 10), value="best", eval_every=2))
    for step, value in ((2, 0.5), (4, 0.9), (6, 0.3)):
        story.happen(e.Evaluated(node=node.id, step=step, metrics={METRIC: value}))
    assert checkpoint_needs.steps_to_keep(story.plan, node.id, 0, 10) == [4]
    assert checkpoint_needs.steps_to_keep(story.plan, node.id, 4, 10) == []
    [best] = checkpoint_needs.best_so_far(story.plan, [node.id], 3)
    assert best.metrics == {METRIC: 0.5} and best.is_beaten_at(4, {METRIC: 0.6})
    assert not best.is_beaten_at(4, {METRIC: 0.5})
    assert not best.is_beaten_at(5, {METRIC: 0.9}), "another study has asked for that result"
    assert not best.is_beaten_at(12, {METRIC: 0.9}), "no trial of the study reaches that step"
    story.keep(node.id, 4)
    assert checkpoint_needs.steps_to_keep(story.plan, node.id, 0, 10) == []
    [study] = story.plan.studies.values()
    study.isolated = "saving changes its trials"
    assert checkpoint_needs.best_so_far(story.plan, [node.id], 3) == ()
