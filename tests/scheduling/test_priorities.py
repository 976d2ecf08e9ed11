"""A tuner says how urgent a trial is, and slots go by that within its study, not beyond it."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import Refused, StudyId
from app.scheduling.frontier import Frontier
from app.search.replay import replay
from app.search.tuners import TUNERS
from app.search.tuners.base import NewTrial, Next, Tuner
from tests.plans import Story
from tests.tuners.worlds import STUDY, numbered_events, simulator, spec


def prioritize(story: Story, study: StudyId, trial: int, priority: float) -> tuple[e.Event, ...]:
    action = c.Prioritize(trial=trial, priority=priority, reason={"why": "promising"})
    return story.give(c.ApplyTunerActions(study=study, actions=(action,)))


def test_the_most_urgent_trial_of_a_study_comes_first() -> None:
    story = Story()
    study = story.submit(({"h": 1}, 10), ({"h": 2}, 20), ({"h": 3}, 30))
    frontier = Frontier(story.plan)
    frontier.refresh()
    assert frontier.most_urgent_head() == (story.path(study, 2)[0].id, 0)
    assert prioritize(story, study, 0, 1.0) == (
        e.TrialPrioritized(study=study, trial=0, priority=1.0, reason={"why": "promising"}),
    )
    assert prioritize(story, study, 0, 1.0) == ()
    frontier.refresh()
    assert frontier.most_urgent_head() == (story.path(study, 0)[0].id, 0)
    prioritize(story, study, 0, -1.0)
    prioritize(story, study, 2, -2.0)
    frontier.refresh()
    assert frontier.most_urgent_head() == (story.path(study, 1)[0].id, 0)
    line = story.plan.studies[study].history[-1]
    assert (line.kind, line.trial, line.priority) == ("prioritize", 2, -2.0)


def test_a_priority_counts_for_its_study_only() -> None:
    story = Story()
    mine = story.submit(({"h": 1}, 10))
    theirs = story.submit(({"h": 2}, 20))
    prioritize(story, mine, 0, 1e6)
    frontier = Frontier(story.plan)
    frontier.refresh()
    assert frontier.most_urgent_head() == (story.path(theirs)[0].id, 0)


def test_a_shared_beginning_is_as_urgent_as_the_most_urgent_trial_behind_it() -> None:
    story = Story()
    early = {"family": "values", "values": [1, 2], "milestones": [4]}
    study = story.submit(({"h": 9}, 100), ({"h": early}, 8), ({"h": 1}, 8))
    prioritize(story, study, 1, 1.0)
    frontier = Frontier(story.plan)
    frontier.refresh()
    trunk, branch = story.path(study, 1)
    assert [span.node for span in frontier.path((trunk.id, 0))] == [trunk.id, branch.id]


@pytest.mark.parametrize("priority", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused(priority: float) -> None:
    story = Story()
    study = story.submit(({"h": 1}, 10))
    with pytest.raises(Refused, match="must be a finite number"):
        prioritize(story, study, 0, priority)


class Backwards(Tuner):
    """Four trials, the last one first."""

    eager = True

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.started, self.urgent = 0, 0

    def observe(self, event: Any) -> None:
        self.started += event.kind == "start"
        self.urgent += event.kind == "prioritize"

    def suggest(self) -> Next | None:
        if self.started < 4:
            return NewTrial(steps=5)
        return c.Prioritize(trial=self.urgent, priority=1.0 + self.urgent) if self.urgent < 4 else None


def test_a_tuners_priorities_are_followed_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    study = spec({"kind": "sha", "num_trials": 4, "min_steps": 5, "max_steps": 5})
    monkeypatch.setitem(TUNERS, "sha", Backwards)
    world = simulator(study, slots=1)
    world.run()
    results = [line.trial for line in world.plan.studies[STUDY].history if line.kind == "result"]
    assert results == [3, 2, 1, 0]
    found = replay(numbered_events(world.events), STUDY)
    assert found.identical and found.decisions == 4 + 4 + 1
