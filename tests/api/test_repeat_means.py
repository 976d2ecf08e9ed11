"""A trial with repeats is shown by their means everywhere; a file of one of them names the value of that one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import results
from app.domain.events import CheckpointKept, Evaluated
from app.domain.search_plan import Study
from app.service.files import kept_state
from app.service.plan_history import PlanHistory
from app.service.views import documents, pictures
from app.service.views.film import film
from app.service.views.plans import event
from app.simulation.simulator import Simulator
from stagetree.notebook.frames import StudyHistory
from stagetree.text import means
from tests.domain.test_accounting import simulator, submit
from tests.domain.test_averages import STUDY, average_command, train_three_trials
from tests.plans import METRIC, Story, study_of


def simulate_repeats(**fields: object) -> tuple[Simulator, Study, PlanHistory]:
    """A study of four trials with three repeats each, which has ended, and its history."""
    simulated, history = simulator(), PlanHistory()
    spec = study_of([({"lr": lr}, 6) for lr in (0.1, 0.2, 0.3, 0.4)], repeats=3, eval_every=2, **fields)
    study = submit(simulated, spec.to_json())
    simulated.run()
    history.take_all(simulated.log())
    return simulated, study, history


def test_results_over_time_are_the_means_of_all_repeats() -> None:
    """The first repeat that was measured counted, so that the picture named another best trial than the table."""
    simulated, study, history = simulate_repeats()
    shown = pictures.history(history, study, study.submitted_version - 1, simulated.plan.version).best
    best = results.best(simulated.plan, study)
    assert best is not None and best[1].repeats == 3
    assert (shown[-1].trial, shown[-1].value) == (best[0].number, pytest.approx(best[1].value))
    found = [each for each in history.results(study.id) if each.step == 6]
    assert sorted(each.trial for each in found) == [0, 1, 2, 3], "once for each trial"


def test_an_average_that_is_measured_where_it_begins_is_a_result() -> None:
    """It was in the table, and missing among the best results over time."""
    world, history = train_three_trials(), PlanHistory()
    world.give(average_command(trials=(0, 1, 2)))
    world.run()
    history.take_all(world.log())
    average = world.plan.studies[STUDY].trials[-1]
    assert [(each.trial, each.step) for each in history.results(STUDY)][-1] == (average.number, average.steps)


def test_the_film_ends_on_the_line_of_its_winner() -> None:
    simulated, study, history = simulate_repeats()
    tree = pictures.tree(simulated.plan, study, 1000)
    shown = documents.study(simulated.plan, study.id, now=0.0, with_trials=False)
    drawn = film(study, shown, tree, history, simulated.plan.version).drawn
    [star] = [each for each in drawn if each.kind == "star"]
    [way] = [each for each in drawn if (each.kind, each.role) == ("line", "accent")]
    assert way.points[-1] == pytest.approx(star.points[0])


def test_a_trial_ends_in_a_data_frame_when_the_last_of_its_repeats_does() -> None:
    """It ended with the first."""
    simulated, study, _ = simulate_repeats()
    plan, log = simulated.plan, simulated.log()
    trials, events = [documents.trial(plan, each) for each in study.trials], [event(each, 0) for each in log]
    shown = StudyHistory(documents.study(plan, study.id, now=0.0), trials, events, [])
    for trial in study.trials:
        ends = {run.path[-1] for run in trial.runs}
        measured = [each.at for each in log if isinstance(each.event, Evaluated) and each.event.node in ends]
        assert shown.history(trial.number).ended == max(measured) > min(measured)


def test_a_file_of_weights_names_its_repeat_and_the_value_that_was_measured_with_it() -> None:
    """The mean of all repeats stood beside the weights of the first."""
    story = Story()
    lr = {"family": "multistep", "init": 0.1, "milestones": [3], "gamma": 0.1}
    study = story.submit(({"lr": lr}, 5), repeats={"seeds": 2, "from": "branch"})
    trial = story.plan.studies[study].trials[0]
    before = story.plan.nodes_of(trial, 3)[0].id
    story.happen(CheckpointKept(node=before, step=3, key="shared", sha256="", size=1))
    for value, node in enumerate(story.plan.nodes_of(trial, 5)):
        story.happen(Evaluated(node=node.id, step=5, metrics={METRIC: float(value)}))
        story.happen(CheckpointKept(node=node.id, step=5, key=node.id, sha256="", size=1))
    said = kept_state(story.plan, story.plan.studies[study], 0, 5).text
    measured = f"its evaluate measured {METRIC} 0.0; the trial's result there is the mean of all 2: {METRIC} 0.5"
    assert said == f"trial 0, the first of its 2 repeats, after step 5: {measured}"
    assert "repeats" not in kept_state(story.plan, story.plan.studies[study], 0, 3).text, "before they part"


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(1, 5))
def test_a_mean_lies_within_its_values(values: list[float], times: int) -> None:
    """So three equal repeats reach the target that each of them reaches."""
    mean = means([{METRIC: value} for value in values])[METRIC]
    assert min(values) <= mean <= max(values)
    assert means([{METRIC: values[0]}] * times) == {METRIC: values[0]}
