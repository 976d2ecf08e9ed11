"""A study in two lines: correct English for every case, and no number that another answer contradicts."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import events as e
from app.domain.search_plan import StoredSpec
from app.domain.terms import ChainId, StudyId, VerificationKind
from app.service.views import documents
from app.service.views.story import question
from stagetree.spec import StudySpec
from stagetree.text import rough_duration
from tests.domain.test_accounting import asha, simulator, submit
from tests.plans import METRIC, Story, max_examples, study_of
from tests.strategies import Trial, spaces

NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
DECAY = {"family": "multistep", "init": 0.1, "milestones": [8], "gamma": 0.1}


def story_document(plan: Any, study: StudyId) -> Any:
    return documents.study(plan, study, now=0.0)["story"]


def tell(values: list[float | None], end: str = "", asked: int = 10, **fields: Any) -> list[str]:
    """The lines about a study of trials that share nothing, with these results at their end."""
    story = Story()
    study = story.submit(*(({"lr": (number + 1) / 10}, asked) for number in range(len(values))), **fields)
    for number, value in enumerate(values):
        if value is not None:
            metrics = value if isinstance(value, dict) else {METRIC: value}
            story.happen(e.Evaluated(node=story.path(study, number)[-1].id, step=asked, metrics=metrics))
    ends = {"completed": e.StudyCompleted, "cancelled": e.StudyCancelled}
    if end:
        story.happen(ends[end](study=study, at=1.0))
    return list(story_document(story.plan, study)["lines"])


TWO = {"metrics": [{"name": METRIC, "mode": "max"}, {"name": "size", "mode": "min"}]}
BELOW = {"constraints": [f"{METRIC} <= 0.5"]}


@pytest.mark.parametrize(
    ("values", "fields", "line"),
    [
        ([], {}, "The study has no trials yet."),
        ([None], {}, "No trial has a result yet."),
        ([None], {"end": "completed"}, "No trial has a result."),
        ([0.5], {}, "Best so far: trial 0, accuracy 0.5 at step 10, the only trial."),
        ([None, 0.5], {}, "Best so far: trial 1, accuracy 0.5 at step 10, the only result."),
        ([0.1, 0.5], {}, "Best so far: trial 1, accuracy 0.5 at step 10, the highest of 2 results."),
        (
            [0.1, 0.5],
            {"end": "completed", "mode": "min"},
            "Best: trial 0, accuracy 0.1 at step 10, the lowest of 2 results.",
        ),
        (
            [0.1, 0.5],
            {"end": "cancelled", "value": "best"},
            "Best when the study was cancelled: trial 1, accuracy 0.5 at step 10, the highest of 2 results.",
        ),
        (
            [0.5, 0.1, 0.5, 0.5],
            {"end": "completed"},
            "Best: trial 0, accuracy 0.5 at step 10, the highest of 4 results; trials 2 and 3 have the same value "
            "(ties go to the lowest number).",
        ),
        (
            [0.9, 0.4, 0.3],
            {"end": "completed", **BELOW},
            "Best: trial 1, accuracy 0.4 at step 10, the highest of the results that satisfy accuracy <= 0.5, 3 in "
            "all.",
        ),
        ([0.9, 0.8], BELOW, "No trial satisfies accuracy <= 0.5; trial 1 is closest."),
        (
            [{METRIC: 0.5, "size": 1.0}, {METRIC: 0.4, "size": 2.0}],
            {"end": "completed", **TWO},
            "1 Pareto-optimal trial: 0 (accuracy and size, 2 results).",
        ),
        (
            [{METRIC: 0.5, "size": 1.0}, {METRIC: 0.6, "size": 2.0}, {METRIC: 0.1, "size": 3.0}],
            TWO,
            "2 Pareto-optimal trials so far: 0 and 1 (accuracy and size, 3 results).",
        ),
    ],
)
def test_why_the_best_one_won(values: list[Any], fields: dict[str, Any], line: str) -> None:
    assert tell(values, **fields)[0] == line


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        ((8, 4, 2, 2), "(ties go to the lowest number), and trial 2 had it at step 2."),
        ((2, 4, 8, 2), "(ties go to the lowest number), none in fewer steps."),
        ((4, 4, 4, 4), "(ties go to the lowest number)."),
    ],
)
def test_a_tie_of_trials_of_different_lengths_names_the_shortest(steps: tuple[int, ...], end: str) -> None:
    """The story kept silent about length: the winner took four times the steps of another trial with the same value."""
    story = Story()
    study = story.submit(*(({"lr": (number + 1) / 10}, each) for number, each in enumerate(steps)))
    for trial, each in zip(story.plan.studies[study].trials, steps, strict=True):
        story.evaluate(list(story.plan.sources(trial))[-1][0], each, 0.5)
    line = story_document(story.plan, study)["lines"][0]
    assert line.endswith("; trials 1, 2 and 3 have the same value " + end)


EQUAL = "Equal results may be chance: `repeats` in the study file measures that."


@pytest.mark.parametrize(
    ("values", "fields", "lines"),
    [
        ([0.5, 0.1], {}, []),
        ([0.5, 0.1, 0.5], {"end": "completed"}, [EQUAL]),
        ([0.9, 0.9, 0.4], BELOW, []),
        ([{METRIC: 0.5, "size": 1.0}, {METRIC: 0.5, "size": 1.0}], TWO, []),
    ],
)
def test_equal_results_have_no_winner(values: list[Any], fields: dict[str, Any], lines: list[str]) -> None:
    """The lowest number won, as if it were better, and nothing pointed to `repeats`."""
    assert tell(values, **fields)[2:] == lines


def test_hyper_parameters_without_an_effect_are_reported_instead_of_repeats() -> None:
    """All trials were equal to the last bit, and `repeats` was to tell how much of that is chance."""
    story = Story()
    study = story.submit(({"lr": 0.1, "bs": 1}, 4), ({"lr": 0.2, "bs": 1}, 4), ({"lr": 0.3, "bs": 1}, 4))
    for number in range(3):
        story.evaluate(story.path(study, number)[-1].id, 4, 0.5)
    idle = "`lr` changes nothing so far: all trials have equal results."
    assert story_document(story.plan, study)["noise"] == idle
    node = story.path(study)[-1].id
    test = {"device": "cpu", "node": node, "begin": 0, "step": 2}
    story.happen(e.ExactnessTested(chain=ChainId("c"), proof=VerificationKind.CHECK, **test, unread=["bs", "lr"]))
    unread = "`lr` changes nothing: `setup` never reads it, nor do the first steps."
    assert story_document(story.plan, study)["noise"] == unread


def test_a_value_that_changed_a_result_on_the_way_is_not_said_to_change_nothing() -> None:
    story = Story()
    study = story.submit(({"lr": 0.1}, 4), ({"lr": 0.2}, 4))
    for number, first in enumerate((0.2, 0.3)):
        node = story.path(study, number)[-1].id
        story.evaluate(node, 2, first)
        story.evaluate(node, 4, 0.5)
    assert story_document(story.plan, study)["noise"] == EQUAL


def test_equal_results_of_one_training_are_no_chance() -> None:
    story = Story()
    study = story.submit(({"lr": 0.1}, 4), ({"lr": 0.1}, 4))
    story.evaluate(story.path(study)[-1].id, 4)
    assert story_document(story.plan, study)["equal"] == [1]
    assert story_document(story.plan, study)["noise"] == ""


@pytest.mark.parametrize(
    ("measured", "close", "line"),
    [
        ([(0.70, 0.72, 0.74), (0.69, 0.71, 0.73), (0.10, 0.12, 0.14)], [1], "Trial 1 may be as good: it differs from "),
        ([(0.70, 0.72), (0.69, 0.71), (0.68, 0.71)], [1, 2], "Trials 1 and 2 may be as good: they differ from "),
        ([(0.70, 0.72), (0.40, 0.42)], [], None),
        ([(0.70, 0.70), (0.70, 0.70)], [], None),
    ],
)
def test_differences_within_the_noise_are_reported(
    measured: list[tuple[float, ...]], close: list[int], line: str | None
) -> None:
    """The first won because its value was the highest, however little that said."""
    story = Story()
    configurations = (({"lr": (number + 1) / 10}, 4) for number in range(len(measured)))
    study = story.submit(*configurations, repeats=len(measured[0]))
    for trial, values in zip(story.plan.studies[study].trials, measured, strict=True):
        for node, value in zip(story.plan.nodes_of(trial, 4), values, strict=True):
            story.evaluate(node.id, 4, value)
    shown = story_document(story.plan, study)
    assert shown["within_noise"] == close
    than = "trial 0 by less than 2 standard errors, by their repeats; more `repeats` would tell."
    assert shown["lines"][2:] == [shown["noise"]] * bool(close)
    assert shown["noise"] == (line + than if line else "")


@pytest.mark.parametrize(
    ("values", "fields", "line"),
    [
        ([], {}, "Nothing was saved by sharing or early stopping so far."),
        ([0.5], {"end": "completed"}, "Nothing was saved by sharing or early stopping."),
        ([0.5, 0.1], {}, "No other trial shares its first steps."),
        ([0.5, 0.1], {"merge": False}, "Each trial is trained alone, as the study asks."),
    ],
)
def test_that_nothing_was_saved(values: list[Any], fields: dict[str, Any], line: str) -> None:
    assert tell(values, **fields)[1] == line


def test_the_story_counts_failures() -> None:
    simulated = simulator(dict.fromkeys(range(20), "fail"))
    study = submit(simulated, study_of([({"lr": 0.1}, 4), ({"lr": 0.2}, 4)], max_restarts=0).to_json()).id
    simulated.run()
    assert story_document(simulated.plan, study)["lines"][0] == "No trial has a result; 2 of 2 trials failed."


def test_savings_are_stated_with_their_time() -> None:
    simulated = simulator(slots=1)
    study = submit(simulated, study_of([({"lr": DECAY}, 20), ({"lr": 0.1}, 20), ({"lr": 0.1}, 9)]).to_json())
    simulated.run()
    shown = story_document(simulated.plan, study.id)
    best = documents.study(simulated.plan, study.id, now=0.0)["best"]["trial"]
    first = {0: "2 other trials share its first 8 steps", 1: "2 other trials share its first 8 steps"}.get(best)
    first = first or "1 other trial shares its first 9 steps"
    assert shown["lines"][1] == f"{first}; sharing saved about 17 s of slot time (17 steps)."
    stopped = submit(simulated, asha()).id
    simulated.run()
    line = story_document(simulated.plan, stopped)["lines"][1]
    assert re.search(
        r"; sharing saved about .*\), and early stopping about \d+ \w+ of slot time \(\d+ steps\)\.$", line
    )


def test_what_only_other_studies_have_trained_is_said_to_be_shared_with_them() -> None:
    """It read: no other trial shares its first steps; sharing saved 40 steps."""
    simulated = simulator(slots=1)
    spec = study_of([({"lr": 0.1}, 20), ({"lr": 0.2}, 20)]).to_json()
    for _ in range(2):
        study = submit(simulated, spec)
        simulated.run()
    line = story_document(simulated.plan, study.id)["lines"][1]
    assert line == "No other trial shares its first steps; sharing with other studies saved 40 steps."


def test_no_time_is_claimed_by_the_pace_of_a_process_that_begins() -> None:
    story = Story()
    study = story.submit(({"lr": 0.1}, 8), ({"lr": DECAY}, 8), ({"lr": 0.1}, 8))
    story.train(story.assign((story.path(study)[0], 0, 8)), seconds=4.0)
    assert story_document(story.plan, study)["lines"][1].endswith("sharing has saved 16 steps so far.")
    assert story_document(story.plan, study)["seconds_by_sharing"] == 0


def test_means_averages_and_cooldowns_say_what_they_are() -> None:
    story = Story()
    study = story.submit(({"lr": 0.1}, 4), ({"lr": 0.2}, 4))
    trials = story.plan.studies[study].trials
    averaged = [{"trial": 4}, {"trial": 7}, {"trial": 4}]
    for number, reason in enumerate(({"average_of": averaged}, {"cooldown_of": 5, "at": 2})):
        trials[number].reason.update(reason)
        story.evaluate(story.path(study, number)[-1].id, 4, 0.5 + number)
        line = story_document(story.plan, study)["lines"][0]
        names = ("trial 0 (average of trials 4 and 7), ", "trial 1 (cooldown of trial 5), ")
        assert line.startswith(f"Best so far: {names[number]}")
        trials[0].reason.update({"average_of": averaged[::2]})
        assert number or "trial 0 (average of 2 states of trial 4), " in story_document(story.plan, study)["lines"][0]
    simulated, spec = simulator(), study_of([({"lr": 0.1}, 4), ({"lr": 0.2}, 4)], repeats=3).to_json()
    repeated = submit(simulated, spec).id
    simulated.run()
    assert re.search(
        r"accuracy [\d.]+ ± [\d.]+ \(mean of 3 repeats\) at", story_document(simulated.plan, repeated)["lines"][0]
    )


def test_repeats_of_a_branch_and_the_best_of_many_means_say_so() -> None:
    simulated = simulator()
    many = study_of([({"lr": number / 100}, 4) for number in range(1, 11)], repeats=2).to_json()
    ends = study_of([({"lr": DECAY}, 20)], repeats={"seeds": 2, "from": 9}).to_json()
    first, second = (submit(simulated, spec).id for spec in (many, ends))
    simulated.run()
    selected = "the highest of many means is likely too good by chance, and repeats with new seeds would confirm it."
    assert story_document(simulated.plan, first)["lines"][0].endswith(f"the highest of 10 results; {selected}")
    line = story_document(simulated.plan, second)["lines"][0]
    assert "(mean of 2 repeats from step 9, the noise of the branch alone) at step 20" in line


def numbers_of(shown: Any) -> set[str]:
    """All numbers that the lines may contain: the numbers of the answer."""
    best, story = shown["best"], shown["story"]
    found = [best["trial"], best["steps"], shown["failed"], len(shown["trials"])] if best else [shown["failed"]]
    found += [len(shown["trials"]), story["results"], story["as_far"], story["sharers"], story["shared_beginning"]]
    found += [*story["within_noise"], len(story["within_noise"]) - 3, 2]
    found += [*story["equal"], len(story["equal"]) - 3, shown["cost"]["shared"] + shown["cost"]["known"]]
    found += [trial["last"]["step"] for trial in shown["trials"] if trial["trial"] in story["equal"]]
    texts = {f"{number:,}" for number in [*found, shown["cost"]["stopped_early"]]} | {str(number) for number in found}
    texts |= {rough_duration(story[name]).split()[0] for name in ("seconds_by_sharing", "seconds_by_stopping")}
    return texts | ({f"{abs(best['value']):.6g}"} if best else set())


@max_examples(40)
@given(spaces(), st.integers(0, 30), st.sampled_from(["", "lose", "fail"]), st.booleans())
def test_its_numbers_are_the_answers(trials: list[Trial], turns: int, accident: str, merge: bool) -> None:
    """At any time, with accidents, and beside another study; and they are what a count step by step says."""
    simulated = simulator({2: accident} if accident else None)
    submit(simulated, study_of(trials[:2]).to_json())
    study = submit(simulated, study_of(trials, merge=merge).to_json())
    for _ in range(turns):
        simulated.advance()
    shown = documents.study(simulated.plan, study.id, now=0.0)
    for line in shown["story"]["lines"]:
        assert set(NUMBER.findall(line)) <= numbers_of(shown), line
    best, story, plan = shown["best"], shown["story"], simulated.plan
    assert story["results"] == sum(trial["value"] is not None for trial in shown["trials"])
    if best is None:
        assert (story["as_far"], story["sharers"], story["equal"]) == (0, 0, [])
        return
    valued = [trial for trial in shown["trials"] if trial["value"] is not None]
    assert story["as_far"] == sum(trial["trained"] >= best["steps"] for trial in valued)
    same = [trial["trial"] for trial in valued if trial["value"] == best["value"]]
    assert [best["trial"], *story["equal"]] == same
    together = [alike(plan, study.trials[best["trial"]], other) for other in study.trials]
    del together[best["trial"]]
    most = max((sum(each >= steps for each in together) * steps for steps in together), default=0)
    assert story["sharers"] * story["shared_beginning"] == most
    assert story["sharers"] == (sum(each >= story["shared_beginning"] for each in together) if most else 0)


def alike(plan: Any, one: Any, other: Any) -> int:
    """The trained steps that two trials take in the same nodes, counted one at a time."""
    for step in count(1):
        node = plan.node_of(one, step)
        if step > min(one.steps, other.steps) or node is not plan.node_of(other, step) or step > node.reached:
            return step - 1
    raise AssertionError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (99.4, "99 s"),
        (100, "2 min"),
        (5999, "100 min"),
        (6000, "2 h"),
        (18_000, "5 h"),
        (200_000, "2 days"),
    ],
)
def test_times_have_one_unit(seconds: float, text: str) -> None:
    assert rough_duration(seconds) == text


SEVERAL = [{"name": "loss", "mode": "min"}, {"name": "size", "mode": "min"}]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"space": {"lr": [0.1, 0.2], "bs": 64}}, "Which lr gives the lowest loss?"),
        ({"space": {"lr": [0.1, 0.2], "bs": {"choice": [1, 2]}}}, "Which lr and bs give the lowest loss?"),
        ({"space": {"lr": 0.1}, "mode": "max"}, "Which configuration gives the highest loss?"),
        ({"space": {f"p{n}": [0, 1] for n in range(9)}}, "Which configuration gives the lowest loss?"),
        (
            {"space": {"lr": [1, 2]}, "metric": None, "mode": None, "metrics": SEVERAL},
            "Which lr is best in loss and size?",
        ),
    ],
)
def test_a_study_is_a_question(fields: dict[str, Any], text: str) -> None:
    spec = {
        "name": "s",
        "trainer": "t",
        "metric": "loss",
        "mode": "min",
        "tuner": {"kind": "grid", "max_steps": 4},
    } | fields
    stored = StoredSpec.from_json(
        StudySpec.from_dict({name: value for name, value in spec.items() if value is not None}).to_json()
    )
    assert question(stored) == text
