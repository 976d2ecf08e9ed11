"""Samples differ between studies unless a user fixes the seed; conditional hyper-parameters."""

from __future__ import annotations

from typing import Any

import pytest

from stagetree import Client, Invalid, uniform, when
from tests.api.world import Workers, study_file

RANDOM: dict[str, Any] = {"kind": "random", "num_trials": 3, "max_steps": 10}


def sampled_rates(client: Client, workers: Workers, tuner: dict[str, Any]) -> list[Any]:
    study = client.submit(study_file(space={"lr": uniform(0, 1)}, tuner=tuner)).study
    workers.tune(study)
    assert client.replay(study).identical
    return [trial.hp["lr"]["value"] for trial in client.trials(study)]


@pytest.mark.slow
def test_studies_with_one_seed_draw_differently_unless_they_say_from_what(server: str, workers: Workers) -> None:
    with Client(server) as client:
        assert sampled_rates(client, workers, RANDOM) != sampled_rates(client, workers, RANDOM)
        seeded = {**RANDOM, "sampling_seed": 5}
        assert sampled_rates(client, workers, seeded) == sampled_rates(client, workers, seeded)


def test_the_seed_that_was_given_is_on_record(server: str) -> None:
    with Client(server) as client:
        study = client.submit(study_file(space={"lr": uniform(0, 1)}, tuner=RANDOM)).study
        assert client.study(study).spec["tuner"]["sampling_seed"] >= 0


@pytest.mark.parametrize(("written", "recorded"), [({}, "seed"), ({"ties": "number"}, "number")])
def test_how_ties_are_broken_is_on_record(server: str, written: dict[str, Any], recorded: str) -> None:
    tuner = {"kind": "asha", "num_trials": 3, "min_steps": 1, "max_steps": 10, **written}
    with Client(server) as client:
        study = client.submit(study_file(space={"lr": uniform(0, 1)}, tuner=tuner)).study
        assert client.study(study).spec["tuner"]["ties"] == recorded


def test_a_trial_is_added_with_what_exists(server: str, workers: Workers) -> None:
    space = {"opt": ["adam", "sgd"], "momentum": when({"opt": "sgd"}, uniform(0, 1))}
    with Client(server) as client:
        study = client.submit(study_file(space=space, tuner=RANDOM)).study
        workers.tune(study)
        assert all(
            set(t.hp) == ({"opt", "momentum"} if t.hp["opt"]["value"] == "sgd" else {"opt"})
            for t in client.trials(study)
        )
        assert client.add_trial(study, {"opt": "adam"}, 5).trial == 3
        assert client.add_trial(study, {"opt": "sgd", "momentum": 0.5}, 5).trial == 4
        with pytest.raises(Invalid, match="hp: must hold exactly momentum, opt, got opt"):
            client.add_trial(study, {"opt": "sgd"}, 5)


def test_a_preview_gives_advice(server: str) -> None:
    with Client(server) as client:
        assert "lr is drawn" in client.preview(study_file(space={"lr": uniform(0, 1)}, tuner=RANDOM)).advice[0]
