"""Determinism is a choice that belongs to the plan: an error, a warning with the result, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from moods import Start

from app.domain.terms import plan_id
from app.workers.trainer_connection import Deadline
from stagetree import StudySpec, Trainer
from stagetree.runtime.failures import TrainerFailed

STUDY = {"name": "x", "trainer": "x", "metric": "x", "mode": "max", "tuner": {"kind": "grid", "max_steps": 1}}
STUDY |= {"space": {"lr": [0.1]}}


class Scattering(Trainer):
    """`put_` without accumulation has no deterministic form."""

    name = "scattering"

    def setup(self, hp: dict[str, Any]) -> None:
        pass

    def train(self) -> None:
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2), accumulate=False)

    def evaluate(self) -> dict[str, float]:
        return {"score": 0.5}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_the_operation_raises_warns_or_is_allowed(start: Start, deadline: Deadline) -> None:
    process = start()

    def build(determinism: str) -> None:
        process.call(deadline).build(file=__file__, name="scattering", args={}, seed=0, determinism=determinism)

    build("off")
    process.train({}, 1, deadline=deadline)
    assert process.not_exact == ()
    build("warn")
    process.train({}, 1, deadline=deadline)
    assert process.not_exact == ("put_",)
    build("warn")
    assert process.not_exact == ()  # this one has used nothing yet
    process.call(deadline).evaluate()
    assert process.not_exact == ()
    process.train({}, 1, deadline=deadline)
    assert process.not_exact == ("put_",)
    build("strict")
    with pytest.raises(TrainerFailed, match="put_ does not have a deterministic implementation"):
        process.train({}, 1, deadline=deadline)


def test_determinism_is_part_of_the_plans_name_unless_strict() -> None:
    args = ("digits", "1", {"width": 32}, 0)
    assert plan_id(*args) == plan_id(*args, "strict") != plan_id(*args, "warn") != plan_id(*args, "off")


def test_a_study_stores_determinism_only_if_not_strict() -> None:
    assert "determinism" not in StudySpec.from_dict(STUDY).to_json()
    spec = StudySpec.from_dict({**STUDY, "determinism": "warn"})
    assert spec.to_json()["determinism"] == "warn" and StudySpec.from_dict(spec.to_json()) == spec
