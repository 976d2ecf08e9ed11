"""Which trials are trained together, by measurements of the device, and the effect on a study in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.events import PackingProfiled
from app.domain.search_plan import Node, Study
from app.domain.stage_tree import build_stage_tree, critical_path_steps
from app.domain.terms import ChainId, StudyId
from app.scheduling.packs import best_lanes
from app.scheduling.widths import WORTHWHILE, better_width, times_faster
from app.search.replay import replay
from app.search.tuners import TunerDriver
from app.simulation.pace import even_packs
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec
from tests.plans import METRIC, OPENED, max_examples, study_of
from tests.strategies import Trial, spaces

SECONDS = {"0": 1.0, "2": 0.1, "4": 2.0}


def profile(refusal: str = "") -> PackingProfiled:
    return PackingProfiled(device="d", batch_seconds={} if refusal else SECONDS, peak_bytes={}, refusal=refusal)


def test_packs_are_filled_regardless_of_profiles_of_partial_passes() -> None:
    assert best_lanes(4, None) == best_lanes(4, profile()) == 4


def test_unpackable_trials_are_trained_alone() -> None:
    assert best_lanes(8, profile("it is no TorchTrainer")) == 1


def test_empty_lanes_cost_as_much_as_used_ones() -> None:
    """A pass of two lanes would be fast, but it would not give the bits of the plan."""
    assert times_faster(4, 4, profile()) == 2.0
    assert times_faster(2, 4, profile()) == 1.0
    assert better_width(4, 4, profile()) == 2


SECONDS_OF_PASSES = st.fixed_dictionaries({width: st.floats(1e-6, 1e3) for width in ("0", "2", "4", "8")})


@max_examples(200)
@given(st.floats(1, 20), st.sampled_from([2, 4, 8]), SECONDS_OF_PASSES)
def test_another_width_is_named_only_where_it_is_the_fastest_and_worth_it(
    trials: float, width: int, seconds: dict[str, float]
) -> None:
    measured = replace(profile(), batch_seconds=seconds)
    speeds = {each: times_faster(trials, each, measured) for each in (0, 2, 4, 8)}
    better = better_width(trials, width, measured)
    if better is None:
        assert max(speeds.values()) < WORTHWHILE * speeds[width]
    else:
        assert speeds[better] == max(speeds.values()) >= WORTHWHILE * speeds[width]
    assert speeds[0] == 1.0


@max_examples(100)
@given(st.sampled_from([2, 4, 8]), SECONDS_OF_PASSES)
def test_one_trial_by_itself_needs_no_pack_that_takes_longer(width: int, seconds: dict[str, float]) -> None:
    slow = {each: max(taken, 2 * seconds["0"]) if each != "0" else taken for each, taken in seconds.items()}
    assert better_width(1, width, replace(profile(), batch_seconds=slow)) == 0


# ------------------------------------------------------------------------------------------------------ in virtual time

STUDY = StudyId("study")
WIDTHS, SLOTS = st.integers(2, 4), st.integers(1, 4)


def measure(node: Node, step: int) -> e.Metrics:
    return {METRIC: Random(f"{node.id}/{step}").random()}


def submit(spec: dict[str, Any], packing: int | None, slots: int, pass_times: float | None = 1.0) -> Simulator:
    """packing: 0 is a plan without packs, None one whose width is to be chosen."""
    profile = None if pass_times is None else even_packs(pass_times)
    simulator = Simulator(slots=slots, measure=measure, profile=profile)
    opened = replace(OPENED, packing=packing)
    simulator.give(c.SubmitStudy(plan=opened, study=STUDY, spec=spec, at=0.0))
    driver = TunerDriver(spec)
    driver.observe(simulator.plan.studies[STUDY])
    simulator.give(c.ApplyTunerActions(study=STUDY, actions=driver.suggest(1)))
    return simulator


def study(simulator: Simulator) -> Study:
    return simulator.plan.studies[STUDY]


def packs(simulator: Simulator) -> list[list[e.ChainAssigned]]:
    """The chains that a slot was given at once."""
    found: dict[tuple[str, float], list[e.ChainAssigned]] = {}
    for event in simulator.events:
        if isinstance(event, e.ChainAssigned):
            found.setdefault((event.slot, event.at), []).append(event)
    return list(found.values())


@pytest.mark.slow
@max_examples(60)
@given(spaces(), SLOTS, WIDTHS)
def test_packs_run_each_step_once_and_leave_no_slot_idle(trials: list[Trial], slots: int, width: int) -> None:
    simulated = submit(study_of(trials).to_json(), width, slots)
    longest = critical_path_steps(build_stage_tree(simulated.plan))
    makespan, done = simulated.run(), study(simulated)
    assert done.state == "completed" and done.executed == done.unique
    assert makespan >= longest
    assert makespan <= done.unique / slots + (1 - 1 / slots) * longest + 1e-6, "Graham's bound"
    assert max(map(len, packs(simulated))) <= width


@pytest.mark.slow
@max_examples(60)
@given(spaces(), WIDTHS)
def test_where_a_pass_takes_no_longer_than_a_trial_packs_are_never_slower(trials: list[Trial], width: int) -> None:
    spec = study_of(trials).to_json()
    alone, packed = submit(spec, 0, 1).run(), submit(spec, width, 1).run()
    assert packed <= alone


@pytest.mark.slow
@max_examples(40)
@given(spaces(), SLOTS, WIDTHS, st.floats(0.5, 8))
def test_a_pass_takes_equally_long_with_any_lanes_and_its_seconds_are_shared(
    trials: list[Trial], slots: int, width: int, pass_times: float
) -> None:
    """A full pack takes no longer than one of a single lane: no trial waits for a companion."""
    spec = study_of(trials).to_json()
    as_fast, slower = submit(spec, width, slots), submit(spec, width, slots, pass_times)
    assert slower.run() == pytest.approx(pass_times * as_fast.run())
    busy = Counter[str]()
    for pack in packs(slower):
        busy[pack[0].slot] += pass_times * max(each.stages[-1].end - each.stages[0].start for each in pack)
    assert study(slower).gpu_seconds == pytest.approx(sum(busy.values()))


@pytest.mark.slow
@max_examples(40)
@given(spaces(), SLOTS, WIDTHS)
def test_trials_refused_by_a_device_are_never_packed_there(trials: list[Trial], slots: int, width: int) -> None:
    simulated = submit(study_of(trials).to_json(), width, slots)
    simulated.take([PackingProfiled(device="cpu", batch_seconds={}, peak_bytes={}, refusal="it is no TorchTrainer")])
    simulated.run()
    assert {len(pack) for pack in packs(simulated)} == {1}


def trial(first: float, bs: int, steps: int) -> Trial:
    return {"lr": {"family": "constant", "value": first}, "bs": {"family": "constant", "value": bs}}, steps


def lengths(pack: Sequence[e.ChainAssigned]) -> list[int]:
    return [each.stages[-1].end for each in pack]


def test_siblings_come_first_then_those_with_most_nearly_as_many_steps_to_go() -> None:
    """The longest one leads; what reads batches of another size is in no pack of its."""
    rates = [(0.1, 8, 40), (0.2, 8, 10), (0.3, 8, 30), (0.4, 16, 39), (0.5, 8, 38)]
    simulated = submit(study_of([trial(*each) for each in rates]).to_json(), 3, 1)
    simulated.run()
    assert [lengths(pack) for pack in packs(simulated)] == [[40, 38, 30], [39], [10]]


def test_work_is_divided_among_the_slots_that_are_free() -> None:
    simulated = submit(study_of([trial(0.1 * number, 8, 10) for number in range(1, 7)]).to_json(), 4, 2)
    assert simulated.run() == 10
    assert [len(pack) for pack in packs(simulated)] == [3, 3]


def parting(first: float, then: float, at: int, steps: int) -> Trial:
    """A trial whose rate changes at a step."""
    rate = {"family": "values", "values": [first, then], "milestones": [at]}
    return {"lr": rate, "bs": {"family": "constant", "value": 8}}, steps


def test_lanes_that_are_free_in_mid_pack_are_filled_by_siblings_that_part_there() -> None:
    """To train the first pack to its end and the siblings then would take 50 steps."""
    siblings = [parting(0.2, 0.1 * number, 10, 30) for number in (3, 4)]
    simulated = submit(study_of([trial(0.1, 8, 30), *siblings, trial(0.5, 8, 10)]).to_json(), 4, 1)
    assert simulated.run() == 30 and study(simulated).executed == study(simulated).unique
    assert [lengths(pack) for pack in packs(simulated)] == [[10, 10, 10], [30, 30, 30]]


def test_a_pack_does_not_end_for_siblings_that_would_fill_no_free_lane() -> None:
    """Nine paths continue at step 10, which are two packs of eight, as they are without an end there."""
    others = [trial(0.1 * number, 8, 30) for number in range(1, 8)]
    siblings = [parting(0.9, 0.1 * number, 10, 30) for number in (3, 4)]
    simulated = submit(study_of([*others, *siblings]).to_json(), 8, 1)
    assert simulated.run() == 50
    assert [sorted(lengths(pack)) for pack in packs(simulated)] == [[10, *[30] * 7], [30, 30]]


def test_a_trial_with_another_later_batch_size_fills_no_lane() -> None:
    sizes = {"family": "values", "values": [8, 16], "milestones": [10]}
    siblings = [({**parting(0.2, 0.1 * number, 10, 30)[0], "bs": sizes}, 30) for number in (3, 4)]
    simulated = submit(study_of([trial(0.1, 8, 30), *siblings]).to_json(), 4, 1)
    assert simulated.run() == 50


SHA = {"kind": "sha", "num_trials": 27}


@pytest.mark.parametrize(("slots", "order"), [(1, [[10] * 4, [40]]), (2, [[40], [10] * 4])])
def test_a_fuller_pack_goes_first_where_the_longest_path_can_wait(slots: int, order: list[list[int]]) -> None:
    """On one slot all takes 50 steps either way. On two, the longest path would end later than it must."""
    trials = [trial(0.1, 16, 40), *(trial(0.1 * number, 8, 10) for number in range(2, 6))]
    simulated = submit(study_of(trials).to_json(), 4, slots)
    assert simulated.run() == (50 if slots == 1 else 40)
    assert [lengths(pack) for pack in packs(simulated)] == order


def test_urgent_trials_do_not_wait_for_a_fuller_pack() -> None:
    simulated = submit(
        study_of([trial(0.1 * number, bs, 5) for number, bs in enumerate((16, 8, 8, 8))]).to_json(), 4, 1
    )
    simulated.take([e.TrialPrioritized(study=STUDY, trial=0, priority=1.0)])
    simulated.run()
    assert list(map(len, packs(simulated))) == [1, 3]


def test_a_rung_is_a_pack() -> None:
    """Of Hyperband on one slot, by hand, with batches of one size.

    Packs of 8 begin with 4 + 6 + 12 + 27 trials of 27, 9, 3 and 1 steps: that takes 27 + 9 + 3 and four times 1. Nine
    continue to step 3: 2 + 2; seven to step 9: 6; four to step 27: 18.
    """
    simulated = search("hyperband", 8, 1, 0, sizes=(8,))
    assert simulated.now == 71 and study(simulated).executed == 357


def search(kind: str, packing: int, slots: int, seed: int, sizes: Sequence[int] = (8, 16), **fields: Any) -> Simulator:
    tuner = {"kind": kind, "min_steps": 1, "max_steps": 27, "reduction_factor": 3, "sampling_seed": seed, **fields}
    space = {"lr": {"loguniform": [0.001, 1.0]}, "bs": {"choice": list(sizes)}}
    named = {"name": "study", "trainer": "digits", "metric": METRIC, "mode": "max"}
    spec = StudySpec.from_dict({**named, "space": space, "tuner": tuner})
    simulated = submit(spec.to_json(), packing, slots)
    simulated.run()
    assert study(simulated).state == "completed"
    return simulated


def arms(simulator: Simulator) -> list[tuple[Any, int]]:
    """Each configuration, and how far it came."""
    return [(trial.hp, trial.steps) for trial in study(simulator).trials]


@pytest.mark.slow
@max_examples(6)
@given(st.integers(0, 1000), SLOTS, st.integers(2, 32), st.sampled_from([{"kind": "hyperband"}, SHA]))
def test_packs_change_neither_arms_nor_promotions(seed: int, slots: int, width: int, tuner: dict[str, Any]) -> None:
    alone, packed = (search(packing=packing, slots=slots, seed=seed, **tuner) for packing in (0, width))
    assert arms(packed) == arms(alone)
    assert max(map(len, packs(packed))) > 1


@pytest.mark.slow
@max_examples(6)
@given(st.integers(0, 1000), SLOTS, st.integers(2, 32), st.sampled_from(["asha", "async_hyperband"]))
def test_an_asynchronous_search_has_the_same_arms_and_promotes_by_its_rule(
    seed: int, slots: int, width: int, kind: str
) -> None:
    """Whom it promotes depends on who came first, with packs as without; that it was right to do so, a replay says."""
    found = [search(kind, packing, slots, seed, num_trials=20) for packing in (0, width)]
    drawn = [[hp for hp, _ in arms(each)] for each in found]
    assert drawn[0] == drawn[1]
    assert max(map(len, packs(found[1]))) > 1
    assert replay([(each.version, each.event) for each in found[1].log()], STUDY).identical


def test_a_slot_that_was_given_more_chains_than_a_pack_holds_or_later_ones_is_noticed() -> None:
    simulated = search("sha", 4, 1, 0, num_trials=27)
    log = [each.event for each in simulated.log()]
    given = [number for number, event in enumerate(log) if isinstance(event, e.ChainAssigned)][:4]

    def is_followed(*events: e.Event) -> bool:
        return replay(list(enumerate([*log[: given[-1] + 1], *events], start=1)), STUDY).identical

    first, last = (log[number] for number in (given[0], given[-1]))
    assert isinstance(first, e.ChainAssigned) and isinstance(last, e.ChainAssigned) and is_followed()
    assert not is_followed(replace(last, chain=ChainId("fifth")))
    del log[given[-1]]
    assert not is_followed(replace(last, at=last.at + 1))
