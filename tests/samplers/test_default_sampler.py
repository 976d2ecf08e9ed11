"""A study that names no sampler gets one at its submission: the model where results can guide it."""

from __future__ import annotations

from typing import Any

import pytest

from app.search.samplers import sampler_of
from app.search.samplers.listed import Random
from app.search.samplers.trunks import TrunkSampler
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import MOST_MODELLED

ASHA: dict[str, Any] = {"kind": "asha", "num_trials": 27, "min_steps": 1, "max_steps": 9}
RANGES = {"lr": {"loguniform": [0.001, 1]}, "bs": [32, 64]}


def spec(tuner: dict[str, Any], **fields: Any) -> StudySpec:
    study = {"name": "s", "trainer": "t", "metric": "loss", "mode": "min", "space": RANGES, "tuner": tuner}
    return StudySpec.from_dict({**study, **fields})


def default(tuner: dict[str, Any], **fields: Any) -> str:
    submitted = spec(tuner, **fields).fill_in(sampling_seed=0)
    assert StudySpec.from_dict(submitted.to_json()) == submitted
    return str(submitted.to_json()["tuner"]["sampler"])


@pytest.mark.parametrize(
    "tuner",
    [
        ASHA,
        {**ASHA, "type": "stopping"},
        {**ASHA, "brackets": 2},
        {**ASHA, "num_trials": MOST_MODELLED},
        {"kind": "async_hyperband", "num_trials": 27, "max_steps": 9},
    ],
)
def test_a_model_samples_where_trials_are_asked_for_one_by_one(tuner: dict[str, Any]) -> None:
    assert default(tuner) == "trunks"
    assert default({**tuner, "sampler": "random"}) == "random"


@pytest.mark.parametrize(
    ("tuner", "fields"),
    [
        ({"kind": "sha", "num_trials": 27, "min_steps": 1, "max_steps": 9}, {}),
        ({"kind": "hyperband", "max_steps": 9}, {}),
        ({"kind": "median", "num_trials": 9, "max_steps": 9, "interval": 3}, {}),
        ({**ASHA, "num_trials": MOST_MODELLED + 1}, {}),
        (ASHA, {"metrics": [{"name": "loss", "mode": "min"}, {"name": "size", "mode": "min"}]}),
        (ASHA, {"constraints": ["size <= 3"]}),
        (ASHA, {"space": {"lr": [0.1, 0.2, 0.3], "bs": [*range(1, 10)]}}),
    ],
    ids=["all at once", "brackets at once", "median", "many", "several metrics", "constraints", "all are tried"],
)
def test_samples_are_random_where_a_model_cannot_choose(tuner: dict[str, Any], fields: dict[str, Any]) -> None:
    assert default(tuner, **fields) == "random"


def test_the_model_chooses_among_more_configurations_than_trials() -> None:
    assert default(ASHA, space={"lr": [0.1, 0.2, 0.3, 0.4], "bs": [*range(1, 10)]}) == "trunks"


def test_a_study_that_was_not_submitted_samples_at_random() -> None:
    """So previews and tests need no model, and the default of a later version changes no recorded study."""
    assert isinstance(sampler_of(spec(ASHA)), Random)
    assert isinstance(sampler_of(spec(ASHA).fill_in(0)), TrunkSampler)
    recorded = spec({**ASHA, "sampler": "random"})
    assert spec(ASHA).is_written_as(recorded.to_json()) and recorded.fill_in(0).tuner.sampler == "random"


def test_the_default_may_learn_from_other_studies() -> None:
    assert spec(ASHA, learn_from=["other-1a2b3c"]).learn_from == ["other-1a2b3c"]
