"""The path of a trial is recorded: a log folds to the same plan in all later versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain import schedule
from app.domain.evolve import fold, folding
from app.domain.search_plan import SearchPlan
from app.domain.terms import StudyId
from app.events.codec import decode, encode
from tests.plans import Story, steps

GOLDEN = Path(__file__).parent.parent / "golden"
LINES = [json.loads(line) for line in (GOLDEN / "rich.jsonl").read_text().splitlines()]
"""Events of studies of all tuners and families. Some paths have names that nodes no longer get."""

LINEAR = {"family": "linear", "init": 0.1, "slope": -0.01}


def plan_as_json(plan: SearchPlan) -> dict[str, Any]:
    """The parts of a plan, as JSON."""
    studies = {
        study.id: {
            "state": study.state,
            "counts": [study.requested, study.unique, study.executed, study.num_results, study.active],
            "trials": [{"path": t.path, "asked": t.requested_steps, "state": t.state} for t in study.trials],
        }
        for study in plan.studies.values()
    }
    nodes = {
        node.id: {
            "parent": node.parent,
            "start": node.start,
            "checkpoints": sorted(node.checkpoints),
            "metrics": {str(step): node.metrics[step] for step in sorted(node.metrics)},
            "values": node.segment.values(node.start),
        }
        for node in plan.nodes.values()
    }
    return json.loads(json.dumps({"studies": studies, "nodes": nodes, "roots": plan.roots}))


def test_a_recorded_log_folds_to_the_same_plan() -> None:
    assert {version for _, version, _ in LINES} == {1}
    plan = fold(decode(*line) for line in LINES)
    assert plan_as_json(plan) == json.loads((GOLDEN / "rich.plan.json").read_text())


def round_trip(events: list[e.Event]) -> list[e.Event]:
    """The events after encoding and decoding."""
    return [decode(*json.loads(json.dumps(encode(event)))) for event in events]


@pytest.fixture
def story() -> Story:
    story = Story()
    study = story.submit(({"lr": steps(0.1, 0.01, 0.001, milestones=(10, 20)), "bs": 64}, 15), (LINEAR_HP, 5))
    story.give(c.AskForTrials(study=study, actions=(c.Extend(trial=0, steps=25), c.Extend(trial=1, steps=9))))
    story.submit(({"lr": 0.1, "bs": 64}, 30), merge=False)
    return story


LINEAR_HP = {"lr": LINEAR, "bs": steps(32, 64, milestones=(7,))}


def test_a_path_is_recorded_where_it_grows(story: Story) -> None:
    added = [event.path for event in story.events if isinstance(event, e.TrialAdded)]
    longer = [event.path for event in story.events if isinstance(event, e.TrialExtended)]
    assert [list(way.values()) for way in added] == [[0, 10], [0, 1], [0]]
    assert [list(way.values()) for way in longer] == [[20], [7]]
    study = next(iter(story.plan.studies.values()))
    assert study.trials[0].path == [*added[0], *longer[0]]


def test_folding_derives_no_name(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version may name nodes in another way, and still folds this log."""
    monkeypatch.setattr(schedule, "node_id", lambda *_: pytest.fail("a name was derived"))
    assert fold(round_trip(story.events)) == story.plan


def test_a_trial_of_an_older_version_continues_on_its_path() -> None:
    """Its first nodes keep their names, here unusual ones, and later names follow from them."""
    study = StudyId("s")
    hp = {"lr": steps(0.1, 0.01, milestones=(10,))}
    story = Story()
    story.submit(name="s")
    story.happen(e.TrialAdded(study=study, trial=0, hp=hp, steps=5, reason={"by": "user"}, path={"odd": 0}))
    [longer] = story.give(c.AskForTrials(study=study, actions=(c.Extend(trial=0, steps=12),)))
    assert longer.path == schedule.path(hp, 12, "odd", after=5)
    assert story.trial(study).path == ["odd", *longer.path]


def test_one_command_may_request_the_same_trial_twice(story: Story) -> None:
    study = next(iter(story.plan.studies))
    asks = (c.Extend(trial=0, steps=30), c.Extend(trial=0, steps=26), c.Extend(trial=0, steps=31))
    events = story.give(c.AskForTrials(study=study, actions=asks))
    assert [(event.steps, event.path) for event in events] == [(30, {}), (31, {})]


def test_an_unchanged_segment_keeps_its_node() -> None:
    parts = [{"steps": 10, "sequence": LINEAR}, {"skip": 10, "sequence": LINEAR}]
    story = Story()
    study = story.submit(({"lr": LINEAR}, 30), ({"lr": {"family": "piecewise", "parts": parts}}, 30))
    assert story.path(study, 0) == story.path(study, 1)
    assert story.plan.studies[study].unique == 30


FAILS = """
from tests.plans import Story, METRIC
from app.domain import events as e
story = Story()
study = story.submit(*[({"h": 1}, 30)] * 30, name="s")
node = story.path(study)[0]
chain = story.assign((node, 0, 30), study=study)
story.happen(e.StageFailed(chain=chain.id, index=0, step=5, kind="exception", error="", seconds=0.0, signature=None))
print([(line.kind, line.trial) for line in story.plan.studies[study].history])
"""


def test_the_order_of_failures_does_not_depend_on_hashing() -> None:
    """Sets of strings have another order in each process."""
    told = {failure_order(seed) for seed in ("0", "1", "2")}
    assert len(told) == 1


def failure_order(seed: str) -> str:
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", FAILS], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_folding_a_plan_runs_no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(folding, "evolve", lambda plan, event: seen.append(folding.gc.isenabled()))
    fold([e.StudyPaused(study=StudyId("s"))])
    assert seen == [False] and folding.gc.isenabled()
