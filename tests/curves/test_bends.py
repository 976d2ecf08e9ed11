"""Curves bend where a sequence does: ended trials with the same sequence show the effect."""

from __future__ import annotations

import numpy as np
import pytest

from app.search.curves import Curve, CurveModel
from tests.curves.recordings import HORIZON, STEPS, Array, accuracies, curve

DECAY = ((50, "lr x 0.1"),)
OTHER = ((50, "batch size x 2"),)


def bent(number: int, seed: int, jump: float) -> Array:
    """Curves that come to a stop, and jump at step 50."""
    rng, t = np.random.default_rng(seed), np.array(STEPS)
    begin = 0.3 + rng.uniform(0, 0.1, (number, 1)) - 0.1 * np.exp(-t / 10)
    after = np.where(t > 50, jump * (1 - np.exp(-(t - 50) / 8)), 0.0)
    return np.asarray(begin + after + rng.normal(0, 0.002, begin.shape))


def model(*ended: Curve) -> CurveModel:
    result = CurveModel("max", HORIZON, (0.0, 1.0))
    result.fit(ended)
    return result


def test_the_spread_widens_at_a_bend_without_examples() -> None:
    row = bent(1, 0, 0.3)[0]
    for ended in ([], [curve(values) for values in accuracies(20)]):
        straight, bending = model(*ended).predict([curve(row, 40), curve(row, 40, DECAY)]).spread([100])
        assert bending[0] > 2 * straight[0]
    before = model().predict([curve(row, 40), curve(row, 40, DECAY)]).quantile([45], 0.9)
    assert before[0] == before[1], "a bend does not affect earlier steps"


def test_ended_trials_with_the_same_bend_predict_its_effect() -> None:
    ended = [curve(values, bends=DECAY) for values in bent(12, 1, 0.3)]
    row = bent(1, 2, 0.3)[0]
    posterior = model(*ended).predict([curve(row, 40, DECAY), curve(row, 40, OTHER), curve(row, 40)])
    median, spread = posterior.quantile([100], 0.5)[:, 0], posterior.spread([100])[:, 0]
    assert median[0] == pytest.approx(row[-1], abs=0.05)
    assert median[1] < row[-1] - 0.1 and spread[1] > 2 * spread[0], "another bend predicts nothing for this one"
    assert spread[2] < spread[1]


def test_one_ended_trial_narrows_the_spread_a_little() -> None:
    row = bent(1, 2, 0.3)[0]
    unseen, one, several = (
        model(*(curve(values, bends=DECAY) for values in bent(number, 1, 0.3))).predict([curve(row, 40, DECAY)])
        for number in (0, 1, 12)
    )
    medians = [posterior.quantile([100], 0.5)[0, 0] for posterior in (unseen, one, several)]
    assert medians[0] < medians[1] and medians[1] < medians[2] + 0.1
    spreads = [posterior.spread([100])[0, 0] for posterior in (unseen, one, several)]
    assert spreads[0] > spreads[2] and spreads[1] > spreads[2]


def test_after_its_bend_a_curve_begins_anew() -> None:
    """The curve before the bend is no part of the shape: with the bend the prediction is good, without it bad."""
    rows = bent(30, 3, 0.3)
    with_bend, without = (
        model().predict([curve(row, 60, bends) for row in rows]).log_density([100], rows[:, -1:]).mean()
        for bends in (DECAY, ())
    )
    assert with_bend > without + 0.2


def test_pieces_of_a_curve() -> None:
    whole = Curve(
        (0, 10, 20, 30, 40), (1.0, 2.0, 3.0, 4.0, 5.0), ((0, "a"), (20, "b"), (25, "c"), (40, "d"), (70, "e"))
    )
    assert whole.pieces() == [(0, 0, 3), (20, 2, 3), (25, 2, 5)]
    assert whole.bends_within(40, 70) == ((40, "d"),)
    assert Curve((), (), DECAY).pieces() == [(0, 0, 0)]
    assert Curve((60,), (0.1,), DECAY).pieces() == [(0, 0, 0), (50, 0, 1)]
