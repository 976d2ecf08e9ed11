"""Answers are what their classes describe, on recorded studies, also where a server validates nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.evolve import fold
from app.domain.search_plan import SearchPlan
from app.domain.terms import ChainId, StudyId
from app.events.codec import decode
from app.service.views import documents, pictures, plans
from stagetree.models import Answer, Outcome, Trial

S = StudyId("s")
GOLDEN = Path(__file__).parent.parent / "golden"


def golden_logs() -> Iterator[list[e.Event]]:
    """Recorded studies of every kind of tuner, each plan's events by themselves."""
    yield [decode(*json.loads(line)) for line in (GOLDEN / "rich.jsonl").read_text().splitlines()]
    foretold: dict[str, list[e.Event]] = {}
    for line in (GOLDEN / "foretold.jsonl").read_text().splitlines():
        log, *event = json.loads(line)
        foretold.setdefault(log, []).append(decode(*event))
    yield from foretold.values()


def plans_on_the_way(log: list[e.Event], looks: int = 4) -> Iterator[SearchPlan]:
    """The plan as it was after parts of its log, then after all of it."""
    plan, size = SearchPlan(), -(-len(log) // looks)
    for start in range(0, len(log), size):
        fold(log[start : start + size], plan)
        yield plan


def a_plan_with_everything_that_is_said_sometimes() -> SearchPlan:
    """Weights and inputs of its own, a pack, a note, a trial that failed and one that is under way."""
    begin = {"file": "/weights.pt", "sha256": "0" * 64, "state": True, "key": "k", "size": 1}
    inputs = [{"path": "/data", "files": 1, "bytes": 2, "stamp": "s"}]
    opened = e.PlanOpened(trainer="t", trainer_version="1", trainer_args={}, seed=0, packing=2, inputs=inputs)
    plan, spec = SearchPlan(), {"name": "n", "metric": "m", "mode": "max"}
    submitted = c.SubmitStudy(plan=opened, study=S, spec=spec, at=10.0, begin=begin, inputs=inputs)
    fold(decide(plan, submitted), plan)
    starts = tuple(c.Start(hp={"lr": lr}, steps=40) for lr in (0.1, 0.2))
    fold(decide(plan, c.ApplyTunerActions(study=S, actions=starts)), plan)
    for number, trial in enumerate(plan.studies[S].trials):
        stages = (e.Stage(node=trial.path[0], start=0, end=40, study=S, evaluate=(40,)),)
        fold([e.ChainAssigned(chain=ChainId(f"c{number}"), slot="gpu0", stages=stages, at=1.0)], plan)
    failed = e.StageFailed(chain=ChainId("c0"), index=0, step=3, kind="training", error="ValueError: no", seconds=1.0)
    fold([failed, e.NoteAdded(study=S, trial=0, text="look here", at=12.0)], plan)
    return plan


def shown_of(plan: SearchPlan) -> Iterator[Answer]:
    yield plans.plan(plan, "p")
    for study in plan.studies.values():
        yield documents.study(plan, study.id, now=11.0)
        yield from (documents.trial(plan, trial) for trial in study.trials)
        yield plans.stage_tree(plan, study)
        yield pictures.tree(plan, study, points=8)
        yield pictures.rungs(study)


def answers_in(value: Any) -> Iterator[Answer]:
    """All that are part of it."""
    if isinstance(value, Answer):
        yield value
        value = vars(value)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from answers_in(part)


def check(shown: Iterable[Answer]) -> set[type[Answer]]:
    """Every answer is one that its class would have let through; the classes that were met."""
    met = set[type[Answer]]()
    for whole in shown:
        text = whole.model_dump_json(by_alias=True, exclude_unset=True)
        assert type(whole).model_validate_json(text, strict=True).to_json() == whole.to_json()
        for part in answers_in(whole):
            others = {*vars(part), *(part.model_extra or ())} - set(type(part).model_fields)
            assert (type(part).__name__, others) == (type(part).__name__, set())
            met.add(type(part))
    return met


@pytest.mark.slow
def test_an_answer_is_what_its_class_describes() -> None:
    """Also one that is made without validation; and a server sets no field that only a newer one may have."""
    met = check(shown_of(a_plan_with_everything_that_is_said_sometimes()))
    for log in golden_logs():
        for plan in plans_on_the_way(log):
            met |= check(shown_of(plan))
    assert {Trial, Outcome} <= met
    assert {"Prediction", "Failure", "Failures", "Note", "UnderWay", "RungStanding"} <= {kind.__name__ for kind in met}


def test_a_trial_made_without_validation_is_like_one_that_was_validated() -> None:
    plan = a_plan_with_everything_that_is_said_sometimes()
    node = plan.studies[S].trials[1].path[0]
    fold([e.Evaluated(node=node, step=40, metrics={"m": 0.5})], plan)
    made = documents.trials(plan, plan.studies[S])[1]
    read = Trial.from_json(made.to_json())
    assert (made, list(made.keys()), vars(made)) == (read, list(read.keys()), vars(read))
    assert made.model_copy() == read and made.with_fields(error="no").get("error") == "no"
    assert (made["value"], made.get("prediction"), "nothing" in made) == (0.5, None, False)
