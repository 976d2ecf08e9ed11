"""A study with and without sharing: both sides add up to what the study is charged, and no slot does two things."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import accounting
from app.domain.events import Stage
from app.service.plan_history import PlanHistory
from app.service.views.side_by_side import side_by_side
from app.simulation.simulator import Simulator
from stagetree.models.pages import Blocks
from tests.domain.test_accounting import asha, random_metrics, simulator, submit
from tests.plans import max_examples, study_of
from tests.strategies import Trial, spaces


def busy(blocks: Blocks) -> float:
    """Seconds in blocks, of which none overlaps another one of its row."""
    rows: dict[int, list[tuple[float, float]]] = {}
    for slot, begun, ended in zip(blocks.slot, blocks.begun, blocks.ended, strict=True):
        rows.setdefault(slot, []).append((begun, ended))
    for row in rows.values():
        assert all(before[1] <= after[0] + 2e-3 for before, after in pairwise(sorted(row)))
    return sum(ended - begun for row in rows.values() for begun, ended in row)


@pytest.mark.slow
@max_examples(30)
@given(spaces(), st.integers(0, 40), st.sampled_from(["", "lose", "fail"]))
def test_both_sides_add_up_to_the_waterfall(trials: list[Trial], turns: int, accident: str) -> None:
    simulated = simulator({3: accident} if accident else None)
    study = submit(simulated, study_of(trials, eval_every=2).to_json())
    for _ in range(turns):
        simulated.advance()
    history, cost = PlanHistory(), accounting.cost(simulated.plan, study)
    history.take_all(simulated.log())
    both = side_by_side(simulated.plan, study, history, simulated.plan.version)
    assert (both.shared.steps, both.alone.steps) == (cost.run, cost.steps_taken)
    busy(both.shared)
    if both.slots and both.seconds_per_step:
        pace, rounding = both.seconds_per_step, 2e-3 * (1 + len(both.alone.slot))
        assert abs(busy(both.alone) - cost.steps_taken * pace) <= rounding + 1e-6 * cost.steps_taken
        again = zip(both.alone.begun, both.alone.ended, both.alone.again, strict=True)
        assert abs(sum(end - begin for begin, end, is_again in again if is_again) - cost.shared * pace) <= rounding


def test_without_a_pace_it_says_only_how_many_steps_there_are() -> None:
    """A second that two processes took to begin was the time of eight steps."""
    simulated = simulator(slots=1)
    study = submit(simulated, study_of([({"lr": 0.1}, 8), ({"lr": 0.1}, 8)]).to_json())
    simulated.run()
    history = PlanHistory()
    history.take_all(simulated.log())
    both = side_by_side(simulated.plan, study, history, simulated.plan.version)
    assert both.text.startswith("8 steps were run with sharing; without, the same trials take 16. The duration")
    assert (both.seconds_per_step, both.alone.seconds, both.alone.steps) == (0, 0, 16)


@pytest.mark.parametrize(("start", "compares"), [(0.0, True), (45.0, False)])
def test_where_most_of_the_time_was_the_start_of_a_process_times_do_not_compare(start: float, compares: bool) -> None:
    """With sharing took longer than without, since only its slots had a process to begin."""

    def seconds(stage: Stage, number: int) -> float:
        return 0.5 * (stage.end - stage.start) + (start if number == 0 else 0.0)

    simulated = Simulator(slots=1, measure=random_metrics, seconds=seconds)
    study = submit(simulated, study_of([({"lr": lr, "bs": 1}, 20) for lr in (0.1, 0.1, 0.2, 0.3)]).to_json())
    simulated.run()
    history = PlanHistory()
    history.take_all(simulated.log())
    both = side_by_side(simulated.plan, study, history, simulated.plan.version)
    assert (both.alone.seconds > 0) is compares
    assert both.text.startswith("With sharing" if compares else "60 steps were run with sharing")


def test_it_says_which_side_is_computed() -> None:
    simulated = simulator()
    study = submit(simulated, asha())
    simulated.run()
    history = PlanHistory()
    history.take_all(simulated.log())
    both = side_by_side(simulated.plan, study, history, simulated.plan.version)
    assert both.alone.seconds >= both.shared.seconds > 0
    assert both.text.startswith(f"With sharing, as it happened on {both.slots} slots: {study.executed} steps in")
    assert "Without, computed for the same trials and decisions at" in both.text


def test_where_sharing_looks_slower_the_steps_compare_and_not_the_times() -> None:
    """The trunk ran on a slow slot, and without sharing each step has the mean pace: the picture said 0:45 and 0:33."""

    def seconds(stage: Stage, number: int) -> float:
        return (3.0 if number == 0 else 1.0) * (stage.end - stage.start)

    simulated = Simulator(slots=2, measure=random_metrics, seconds=seconds)
    falling = [{"family": "multistep", "init": 0.1, "milestones": [20], "gamma": gamma} for gamma in (0.1, 0.5)]
    study = submit(simulated, study_of([({"lr": lr}, 24) for lr in falling]).to_json())
    simulated.run()
    history = PlanHistory()
    history.take_all(simulated.log())
    both = side_by_side(simulated.plan, study, history, simulated.plan.version)
    assert both.alone.seconds <= both.shared.seconds
    assert both.text.endswith("Meanwhile slots waited or did other work: compare the steps, not the times.")
