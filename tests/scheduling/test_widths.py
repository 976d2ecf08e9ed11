"""How wide packs are, where that is left to be chosen: the arithmetic, and what becomes of it in virtual time."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.evolve import fold
from app.domain.search_plan import SearchPlan
from app.domain.terms import ChainId, StudyId
from app.scheduling.widths import NEAR, WORTHWHILE, batch_of, choose_width, covers, peaks, widest
from app.search.replay import replay
from app.search.tuners import TunerDriver
from app.simulation.simulator import Simulator
from tests.plans import METRIC, OPENED, Story, max_examples, steps, study_of
from tests.strategies import Trial, spaces

STUDY = StudyId("study")
WIDTHS = ("2", "4", "8")
SECONDS = st.fixed_dictionaries({width: st.floats(0.01, 100) for width in ("0", *WIDTHS)})
SLOTS = st.integers(1, 4)


def profile(seconds: dict[str, float], **more: Any) -> e.PackingProfiled:
    return e.PackingProfiled(device="d", batch_seconds=seconds, peak_bytes={}, **more)


def submit(spec: dict[str, Any], packing: int | None = None, slots: int = 1, **how: Any) -> Simulator:
    """With the trials that the tuner wants before there is any result."""
    simulator = Simulator(slots=slots, measure=lambda node, step: {METRIC: 0.5}, **how)
    simulator.give(c.SubmitStudy(plan=replace(OPENED, packing=packing), study=STUDY, spec=spec, at=0.0))
    driver = TunerDriver(spec)
    driver.observe(simulator.plan.studies[STUDY])
    simulator.give(c.ApplyTunerActions(study=STUDY, actions=driver.suggest(1)))
    return simulator


def search_plan(trials: list[Trial]) -> SearchPlan:
    return submit(study_of(trials).to_json()).plan


def flat(count: int, length: int = 10, **hp: Any) -> list[Trial]:
    """Trials that have nothing in common."""
    return [({"lr": steps(0.1 + number), **hp}, length) for number in range(count)]


def test_the_most_memory_is_known_by_kind_of_gpu_and_sizes_of_batches() -> None:
    """Not where sizes change within a stage, nor of a gang, whose devices have a part each."""
    story = Story()
    grows = {"family": "linear", "init": 16, "slope": 1}
    ran: list[tuple[Any, str, tuple[str, ...], int]] = [
        *((16, "NVIDIA H100, a share of 2", (), peak) for peak in (5, 7, 6)),
        (16, "cpu", (), 3),
        (32, "NVIDIA H100", (), 0),
        (64, "NVIDIA H100", ("gpu1",), 9),
        (grows, "NVIDIA H100", (), 8),
    ]
    for number, (bs, kind, members, peak) in enumerate(ran):
        study = story.submit(({"batch_size": bs, "lr": 0.1 + number}, 10))
        node = story.path(study)[-1]
        stage = e.Stage(node=node.id, start=node.start, end=10, study=study)
        at: Any = {"slot": "gpu0", "members": members, "kind": kind, "at": 0.0}
        story.happen(e.ChainAssigned(chain=ChainId(str(number)), stages=(stage,), **at))
        story.happen(e.StageCompleted(chain=ChainId(str(number)), index=0, seconds=1.0, peak_bytes=peak))
    found = {gpu: sorted(by_size.values()) for gpu, by_size in peaks(story.plan).items()}
    assert found == {"NVIDIA H100": [7], "": [3]}


DOUBLING_EFFICIENCY = {"0": 1.0, **dict.fromkeys(("2", "4", "8", "16"), 1.0)}


@pytest.mark.parametrize(("trials", "slots", "width"), [(8, 1, 8), (5, 1, 8), (16, 2, 8), (3, 1, 4), (2, 1, 2)])
def test_packs_are_as_wide_as_trials_can_fill_and_no_wider(trials: int, slots: int, width: int) -> None:
    seconds = {**DOUBLING_EFFICIENCY, str(trials): 1.0}
    most = -(-trials // slots)
    assert widest(search_plan(flat(trials)), slots) == most
    assert choose_width(search_plan(flat(trials)), profile(seconds), slots)[0] == min(width, most)


def test_of_widths_that_are_nearly_as_fast_the_narrowest_is_chosen() -> None:
    plan = search_plan(flat(8))
    assert choose_width(plan, profile({"0": 1.0, "2": 1.0, "4": 1.04, "8": 1.9}), 1)[0] == 8
    assert choose_width(plan, profile({"0": 1.0, "2": 1.0, "4": 1.04, "8": 2.0}), 1)[0] == 4


def test_packs_less_than_a_tenth_faster_are_not_used() -> None:
    plan = search_plan(flat(8))
    assert choose_width(plan, profile({"0": 1.0, "2": 1.82}), 1)[0] == 0
    assert choose_width(plan, profile({"0": 1.0, "2": 1.81}), 1)[0] == 2


def test_trunks_that_are_shared_speak_for_none() -> None:
    """Eight trials that part at the last of a hundred steps would fill no pack before."""
    late = [({"lr": steps(0.1, 0.2 + number, milestones=[99])}, 100) for number in range(8)]
    slower = profile({"0": 1.0, "8": 1.2})
    assert choose_width(search_plan(late), slower, 1)[0] == 0
    assert choose_width(search_plan(flat(8)), slower, 1)[0] == 8


def test_batches_of_other_sizes_fill_no_pack() -> None:
    sizes = [({"lr": steps(0.1), "bs": steps(size)}, 10) for size in (16, 32, 64, 128)]
    assert widest(search_plan(sizes), 1) == 1
    assert batch_of(search_plan(sizes).nodes[search_plan(sizes).roots[0]]) == {"bs": 16}


def test_where_rungs_get_narrow_packs_are_no_wider_than_usual() -> None:
    tuner = {"kind": "sha", "num_trials": 32, "min_steps": 1, "max_steps": 4, "sampling_seed": 1}
    spec = {**study_of(flat(1)).to_json(), "space": {"lr": {"uniform": [0.1, 1.0]}}, "tuner": tuner}
    assert widest(submit(spec).plan, 1) == 8
    assert widest(search_plan(flat(32)), 1) == 32


def test_the_reason_for_training_alone_is_given() -> None:
    refused = profile({}, refusal="it is no TorchTrainer")
    width, reason = choose_width(search_plan(flat(4)), refused, 1)
    assert width == 0 and reason.endswith("cannot be packed: it is no TorchTrainer")


def test_profiles_of_narrow_packs_do_not_limit_wider_ones() -> None:
    assert covers(profile({"0": 1.0, "2": 1.0, "4": 1.0}), 4)
    assert not covers(profile({"0": 1.0, "2": 1.0, "4": 1.0}), 5)
    assert covers(profile({"0": 1.0, "2": 1.0, "4": 2.0}), 5), "measuring ended there"
    assert not covers(profile({"0": 1.0, "2": 9.0}), 4), "of the first pack that is not said"


@pytest.mark.slow
@max_examples(100)
@given(spaces(), SLOTS, SECONDS)
def test_nothing_is_chosen_that_was_not_measured_or_that_trials_cannot_fill(
    trials: list[Trial], slots: int, seconds: dict[str, float]
) -> None:
    plan = search_plan(trials)
    width, _ = choose_width(plan, profile(seconds), slots)
    assert width in (0, *map(int, WIDTHS)) and width <= widest(plan, slots)


@max_examples(100)
@given(st.integers(2, 40), SLOTS, SECONDS)
def test_of_equal_trials_the_width_is_near_the_fastest_or_nothing_is_a_tenth_faster(
    trials: int, slots: int, seconds: dict[str, float]
) -> None:
    plan = search_plan(flat(trials))
    width, _ = choose_width(plan, profile(seconds), slots)
    possible = [each for each in map(int, WIDTHS) if each <= widest(plan, slots)]
    took = {each: ceil(trials / (slots * each)) * seconds[str(each)] for each in possible}
    best, alone = min(took.values(), default=inf), max(trials / slots, 1) * seconds["0"]
    if width:
        assert took[width] <= NEAR * best and took[width] * WORTHWHILE <= alone * (1 + 1e-9)
    else:
        assert best * WORTHWHILE >= alone * (1 - 1e-9)


# ------------------------------------------------------------------------------------------------------ in virtual time


@max_examples(40)
@given(spaces(), SLOTS, SECONDS)
def test_the_width_is_chosen_and_recorded_once_before_any_stage(
    trials: list[Trial], slots: int, seconds: dict[str, float]
) -> None:
    simulated = submit(study_of(trials).to_json(), slots=slots, profile=profile(seconds | {"3": 1.0, "5": 1.0}))
    simulated.run()
    events, done = simulated.events, simulated.plan.studies[STUDY]
    assert done.state == "completed" and done.executed == done.unique
    (chosen_at,) = (at for at, event in enumerate(events) if isinstance(event, e.PackingChosen))
    assert not any(isinstance(event, e.StageCompleted | e.Evaluated) for event in events[:chosen_at])
    assert sum(isinstance(event, e.ChainAssigned) for event in events[:chosen_at]) <= 1
    assert fold(events).packing == simulated.plan.packing
    assert replay(enumerate(events, 1), STUDY).identical


@max_examples(100)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), SECONDS)
def test_on_one_slot_trials_with_nothing_in_common_are_never_slower_than_alone(
    lengths: list[int], seconds: dict[str, float]
) -> None:
    trials = [({"lr": steps(0.1 + number)}, length) for number, length in enumerate(lengths)]
    simulated = submit(study_of(trials).to_json(), profile=profile(seconds))
    taken, alone = simulated.run(), sum(lengths)
    assert taken * WORTHWHILE <= alone * (1 + 1e-9) if simulated.plan.packing else taken == alone
