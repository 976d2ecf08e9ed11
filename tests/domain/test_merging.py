"""Equal prefixes have equal names: unique steps equal a brute-force count (law 1)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.domain import events as e
from stagetree.sequences import Sequence, parse
from tests.plans import Story, max_examples
from tests.strategies import Trial, configurations, spaces


def beginnings(trials: list[Trial]) -> set[Any]:
    """Every distinct (values up to a step) of the trials. Python takes 1, 1.0 and true for one; their texts differ."""
    found: set[Any] = set()
    for hp, steps in trials:
        names = sorted(hp)
        columns = [parse(hp[name]).take(steps) for name in names]
        rows = [tuple(map(repr, row)) for row in zip(*columns, strict=True)]
        found.update((tuple(names), tuple(rows[:end])) for end in range(1, steps + 1))
    return found


@max_examples(150)
@given(spaces())
def test_unique_is_the_number_of_distinct_beginnings(trials: list[Trial]) -> None:
    story = Story()
    study = story.plan.studies[story.submit(*trials)]
    assert study.requested == sum(steps for _, steps in trials)
    assert study.unique == len(beginnings(trials))


@max_examples(50)
@given(spaces())
def test_without_merging_every_step_is_unique(trials: list[Trial]) -> None:
    story = Story()
    alone, beside = (story.plan.studies[story.submit(*trials, merge=merge)] for merge in (False, True))
    assert alone.unique == alone.requested == beside.requested
    assert not alone.max_step_by_node.keys() & beside.max_step_by_node.keys()


@max_examples(50)
@given(spaces(), spaces())
def test_two_studies_on_a_plan_share_equal_prefixes(first: list[Trial], second: list[Trial]) -> None:
    story = Story()
    one, two = (story.plan.studies[story.submit(*trials)] for trials in (first, second))
    assert (one.unique, two.unique) == (len(beginnings(first)), len(beginnings(second)))
    together = {
        node: max(study.max_step_by_node.get(node, 0) for study in (one, two))
        for node in one.max_step_by_node.keys() | two.max_step_by_node.keys()
    }
    trained = sum(end - story.plan.nodes[node].start for node, end in together.items())
    assert trained == len(beginnings(first) | beginnings(second))


@max_examples(50)
@given(configurations(), st.lists(st.integers(1, 30), min_size=2, max_size=4, unique=True))
def test_an_extended_trial_keeps_its_path(hp: dict[str, Sequence], steps: list[int]) -> None:
    written = {name: sequence.to_json() for name, sequence in hp.items()}
    story = Story()
    study = story.submit(*((written, asked) for asked in sorted(steps)))
    paths = [story.trial(study, number).path for number in range(len(steps))]
    for shorter, longer in pairwise(paths):
        assert longer[: len(shorter)] == shorter
    assert story.plan.studies[study].unique == max(steps)


# ------------------------------------------------------------------------------------------------------- examples


def shared_steps(first: Any, second: Any, steps: int = 60) -> int:
    """The number of steps that two sequences share."""
    story = Story()
    study = story.plan.studies[story.submit(({"x": first}, steps), ({"x": second}, steps))]
    return 2 * steps - study.unique


def family(name: str, **fields: Any) -> dict[str, Any]:
    return {"family": name, **fields}


def test_a_multistep_is_its_constant_until_the_first_milestone() -> None:
    decay = family("multistep", init=0.1, milestones=[20, 30], gamma=0.1)
    assert shared_steps(decay, 0.1) == shared_steps(decay, family("constant", value=0.1)) == 20
    assert shared_steps(decay, family("multistep", init=0.1, milestones=[20, 40], gamma=0.1)) == 30
    assert shared_steps(decay, decay) == 60


def test_a_warm_up_before_a_constant_is_a_wsd_before_its_decay() -> None:
    warm = family("warmup", steps=5, then=0.1)
    assert (
        shared_steps(warm, family("wsd", peak=0.1, warmup=5, stable_until=40, decay=10)) == 41
    )  # the decay begins at 0.1
    assert shared_steps(warm, family("warmup", steps=6, then=0.1)) == 0


NUMBERS = st.floats(1e-6, 1e3)


@max_examples(100)
@given(NUMBERS, NUMBERS, st.sampled_from(["linear", "cosine", "sqrt"]), st.integers(1, 9), st.integers(2, 9))
def test_a_decay_begins_at_its_peak_to_the_last_bit(
    peak: float, final: float, shape: str, until: int, decay: int
) -> None:
    """For any final value. A trial that holds the peak for one step more shares that step."""
    wsd = {"family": "wsd", "peak": peak, "warmup": 0, "stable_until": until, "decay": decay}
    story = Story()
    study = story.plan.studies[
        story.submit(({"lr": {**wsd, "final": final, "shape": shape}}, until + 1), ({"lr": peak}, until + 1))
    ]
    assert study.unique == until + 1


@max_examples(100)
@given(NUMBERS, NUMBERS, st.integers(1, 9), st.integers(1, 9))
def test_decays_and_warm_ups_end_exactly_at_their_values(one: float, other: float, steps: int, power: float) -> None:
    decay = {"family": "polynomial", "init": one, "final": other, "steps": steps, "power": power}
    cosine = {"family": "cosine", "init": one, "min": other, "period": steps + 1}
    assert parse(decay).at(0) == parse(cosine).at(0) == parse(cosine).at(steps + 1) == one
    assert parse({"family": "warmup", "steps": steps, "then": one, "start": other}).at(steps - 1) == one


def test_cosine_periods_that_grow_differently_share_the_first() -> None:
    slow, fast = (family("cosine", init=0.1, min=0.0, period=10, gamma=gamma) for gamma in (1, 2))
    assert shared_steps(slow, fast) == 11  # the first step of the second period is `init` for both


def test_values_of_different_types_are_different_values() -> None:
    assert shared_steps(64, 64.0) == shared_steps(0.0, -0.0) == 0
    assert shared_steps(1, True) == shared_steps(0, False) == shared_steps("1", 1) == shared_steps(None, 0) == 0


def test_a_schedule_of_ints_begins_as_the_int_and_one_with_a_float_as_the_float() -> None:
    growing = family("multistep", init=64, milestones=[20], gamma=2)
    assert (shared_steps(growing, 64), shared_steps(growing, 64.0)) == (20, 0)
    decaying = family("multistep", init=1, milestones=[20], gamma=0.1)
    assert (shared_steps(decaying, 1), shared_steps(decaying, 1.0)) == (0, 20)
    assert shared_steps(growing, family("values", values=[64, 128], milestones=[20])) == 60
    assert shared_steps(family("linear", init=1, slope=2), family("linear", init=1.0, slope=2)) == 0
    assert shared_steps(family("linear", init=1, slope=0.5), family("linear", init=1.0, slope=0.5)) == 60


def test_the_order_of_hyper_parameters_does_not_matter() -> None:
    story = Story()
    study = story.plan.studies[story.submit(({"a": 1, "b": 2}, 10), ({"b": 2, "a": 1}, 10), ({"a": 2, "b": 1}, 10))]
    assert study.unique == 20


def test_a_path_of_thousands_of_nodes_is_no_deeper_than_another() -> None:
    story = Story()
    zigzag = family("cyclic", init=0.0, max=1.0, up=1, down=1)
    study = story.submit(({"lr": zigzag}, 5000))
    assert len(story.trial(study).path) > 4000
    chain = story.assign((story.path(study)[0], 0, 1))
    story.happen(e.StageFailed(chain=chain.id, index=0, step=0, kind="exception", error="Boom", seconds=1.0))
    assert story.trial(study).state == "failed"
