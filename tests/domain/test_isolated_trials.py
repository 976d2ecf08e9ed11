"""When the trials of a study are trained alone, users' requests are repeated unchanged."""

from __future__ import annotations

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Study
from app.domain.terms import ChainId, StudyId, VerificationKind
from tests.plans import Story


def isolate(story: Story, study: StudyId) -> Study:
    found = {"begin": 2, "step": 4, "difference": "1 of 2 leaves differ", "device": "cpu"}
    node = story.trial(study).path[0]
    story.happen(e.ExactnessTested(chain=ChainId("c"), proof=VerificationKind.HANDOVER, node=node, **found))  # type: ignore[arg-type]
    story.give(c.IsolateStudy(study=study, at=1.0))
    return story.plan.studies[study]


def test_a_trial_keeps_its_repeats() -> None:
    """Once each result came from one seed instead of the mean of three."""
    story = Story()
    study = story.submit(({"lr": 1}, 10), repeats=3)
    before = [run.hp for run in story.trial(study).runs]
    [trial] = isolate(story, study).trials
    assert len(before) == 3 and [run.hp for run in trial.runs] == before
    assert len({run.root for run in trial.runs}) == 3 and all(run.root.endswith("/alone") for run in trial.runs)


def test_a_trial_that_was_cancelled_does_not_come_back() -> None:
    story = Story()
    study = story.submit(({"lr": 1}, 10), ({"lr": 2}, 10))
    story.give(c.CancelTrial(study=study, trial=1))
    assert [trial.hp for trial in isolate(story, study).trials] == [{"lr": 1}]
