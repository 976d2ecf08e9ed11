"""What a study is expected to take, before its tuner has asked for most of it."""

from __future__ import annotations

import pytest

from app.simulation.forecast import forecast
from tests.domain.test_accounting import asha, simulator, submit
from tests.domain.test_accounting import cost as cost_of

SPACE = {"lr": {"loguniform": [0.001, 0.1]}}


@pytest.mark.slow
@pytest.mark.parametrize("trials", [9, 40, 300])
def test_the_forecast_of_asha_is_near_its_result(trials: int) -> None:
    tuner = {"kind": "asha", "num_trials": trials, "min_steps": 2, "max_steps": 18, "reduction_factor": 3}
    spec = asha(space=SPACE, tuner=tuner)
    simulated = simulator()
    study = submit(simulated, spec)
    simulated.run()
    found = forecast(spec)
    assert found is not None
    assert found.trials == trials
    assert found.steps == pytest.approx(cost_of(simulated.plan, study).run, rel=0.35)


@pytest.mark.parametrize("kind", ["asha", "sha"])
def test_a_large_study_is_forecast_from_some_of_its_trials(kind: str) -> None:
    """A page showed nothing for a minute, for a study of 10,000 trials under halving."""
    tuner = {"kind": kind, "num_trials": 10_000, "min_steps": 2, "max_steps": 18, "reduction_factor": 3}
    found = forecast(asha(space=SPACE, tuner=tuner))
    assert found is not None
    assert found.trials == 10_000
    halved = 10_000 * 2 + 3_333 * 4 + 1_111 * 12
    assert found.steps == pytest.approx(halved, rel=0.35)


def test_no_forecast_is_needed_when_all_is_requested_at_once() -> None:
    assert forecast(asha(tuner={"kind": "grid", "max_steps": 18})) is None
