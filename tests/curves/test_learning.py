"""Learning from ended curves: the pool is as good as its best member, and the weight of the last value is fitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from app.search.curves import Curve, CurveModel
from app.search.curves.drift import Drift, Row, nearness
from app.search.curves.learning import EQUAL_WEIGHTS, ROUNDS, View, learn_pool, learn_prior, learn_trust, shares_of
from app.search.curves.mixtures import Mixtures
from app.search.curves.quadrature import NUM_NODES, evidence, uniform
from tests.curves.recordings import HORIZON, accuracies, curve
from tests.plans import max_examples

ENDED = accuracies(9, seed=8)


@max_examples(30)
@given(st.integers(0, 2**32), st.integers(30, 200))
def test_a_pool_is_as_good_as_its_best_member(seed: int, rows: int) -> None:
    """Up to the few votes of the prior."""
    logs = np.random.default_rng(seed).normal(0, 2, (rows, 4)) - np.random.default_rng(seed + 1).uniform(0, 4, 4)
    shares = shares_of(logs)
    assert shares.sum() == pytest.approx(1) and np.all(shares > 0)
    pooled = logsumexp(logs + np.log(shares), axis=1).sum()
    assert pooled >= logs.sum(axis=0).max() - 12


def test_the_prior_equals_published_expectation_maximization() -> None:
    """Also without the curve that a part belongs to, with curves of one part and of two."""
    values, clock, owner = accuracies(5, seed=3), tuple(np.linspace(0, 1, 20)), [0, 1, 1, 2, 3]
    (logs,) = (logs for _, logs in evidence(clock, values))
    weights = uniform()
    for _ in range(ROUNDS):
        parts = np.exp(logs + weights - logsumexp(logs + weights, axis=1, keepdims=True))
        weights = np.log((parts.sum(axis=0) + EQUAL_WEIGHTS / NUM_NODES) / (5 + EQUAL_WEIGHTS))
    prior = learn_prior([View(clock, row, 0, HORIZON, 1.0) for row in values], owner)
    assert prior.weights == pytest.approx(weights)
    for row, rest in zip(prior.leave_out([1, 3]), (parts[[0, 3, 4]], parts[:4]), strict=True):
        expected = (rest.sum(axis=0) + EQUAL_WEIGHTS / NUM_NODES) / (len(rest) + EQUAL_WEIGHTS)
        assert np.exp(row) == pytest.approx(expected, abs=1e-12)


def test_the_width_that_fits_is_chosen() -> None:
    rng = np.random.default_rng(0)
    came, widths = rng.normal(0, 1.25, 500), (0.8, 1.25, 2.0)
    alone = np.stack([-0.5 * (came / width) ** 2 - np.log(width) for width in widths], axis=1)
    assert learn_pool(alone, np.full((500, 3), -20.0), widths)[1] == 1.25


def test_the_last_value_is_trusted_as_often_as_it_was_right() -> None:
    rng = np.random.default_rng(0)
    hits = (rng.random(400) < 0.4).astype(float)
    parts, predicted = rng.random(400), np.full(400, 0.4)
    always = learn_trust(parts, predicted, hits, hits)
    assert always[:, 0] == pytest.approx(1, abs=0.1) and always[:, 1] == pytest.approx(0, abs=0.2)
    never = learn_trust(parts, hits, rng.integers(0, 2, 400).astype(float), hits)
    assert never == pytest.approx(0, abs=0.01)
    assert np.all(learn_trust(*np.empty((4, 0))) == 0)


def test_either_verdict_is_trusted_as_it_deserves() -> None:
    """No curve arrives late, and one that arrived may fall back: "not yet" is right, and "reached" says nothing."""
    rng = np.random.default_rng(1)
    verdicts = (rng.random(800) < 0.5).astype(float)
    hits = verdicts * (rng.random(800) < 0.5)
    not_yet, reached = learn_trust(rng.random(800), np.full(800, 0.5), verdicts, hits)
    assert not_yet == pytest.approx([1, 0], abs=0.1)
    assert reached == pytest.approx([0, 0], abs=0.2)


def test_a_study_of_flat_curves_learns_to_trust_the_last_value() -> None:
    rng = np.random.default_rng(3)
    flat = rng.uniform(0, 1, (30, 1)) + rng.normal(0, 1e-4, (30, 20))
    model = CurveModel("max", HORIZON, (0.0, 1.0))
    model.fit([curve(values) for values in flat])
    posterior = model.predict([curve(np.full(20, 0.5), until=50), curve(np.full(20, 0.4), until=50)])
    reaches = posterior.prob_reaches([100], 0.45)[:, 0]
    assert reaches[0] > 0.97 and reaches[1] < 0.03


def test_few_ended_curves_do_no_harm() -> None:
    """One after the other: there is a prediction after any number of them."""
    ended, other = accuracies(8, seed=4), accuracies(1, seed=6)[0]
    curves = [curve(values, until) for values, until in zip(ended, (100, 5, 60, 100, 15, 100, 100, 100), strict=True)]
    for number in range(len(curves) + 1):
        model = CurveModel("max", HORIZON, (0.0, 1.0))
        model.fit(curves[:number])
        posterior = model.predict([curve(other, 30)])
        assert np.isfinite(posterior.log_density([100], np.array([[other[-1]]]))).all()
        assert posterior.spread([100])[0, 0] < 0.6


@max_examples(30)
@given(st.data())
def test_no_curve_is_its_own_example(data: st.DataObject) -> None:
    """The drift predicts the same for an ended curve and for an open one, beside any other curves."""
    rows = [
        Row(curve(values, until=100 - 40 * (i % 3 == 2)), values[: 20 - 8 * (i % 3 == 2)], i)
        for i, values in enumerate(ENDED)
    ]
    now, step = data.draw(st.sampled_from([4, 20, 33, 55])), data.draw(st.sampled_from([60, 75, 100]))
    begun = [
        row.truncate(now)
        for row in data.draw(st.lists(st.sampled_from(rows), min_size=1, unique_by=lambda row: row.itself))
    ]
    together = Drift(rows).predict(begun, step)
    for number, row in enumerate(begun):
        others = Drift([other for other in rows if other.itself != row.itself])
        alone = others.predict([replace(row, itself=-1)], step)
        assert together.peers[number] == alone.peers[0]
        for one, other in ((together.plain, alone.plain), (together.similar, alone.similar)):
            mine = one.row == number
            for part in ("mean", "spread", "weight"):
                assert getattr(one, part)[mine] == pytest.approx(getattr(other, part))


@max_examples(50)
@given(st.data())
def test_ended_curves_are_straight_between_evaluations(data: st.DataObject) -> None:
    steps = st.lists(st.integers(0, 100), min_size=1, max_size=6, unique=True).map(sorted)
    curves = [Curve(tuple(at), tuple(float(step % 7) for step in at)) for at in data.draw(st.lists(steps, min_size=1))]
    step = data.draw(st.floats(-1, 120))
    rows = [Row(one, np.array(one.values), number) for number, one in enumerate(curves)]
    assert Drift(rows).values(step) == pytest.approx([row.value(step) for row in rows])


@max_examples(50)
@given(st.lists(st.floats(-100, 100), max_size=12), st.integers(1, 6))
def test_nearness_is_the_distance_of_that_neighbour(values: list[float], neighbours: int) -> None:
    expected = [sorted(abs(a - b) for b in values)[min(neighbours, len(values) - 1)] for a in values]
    assert nearness(np.array(values), neighbours) == pytest.approx(expected)


def test_a_mixture_has_the_moments_of_its_components() -> None:
    row, weight = np.array([0, 1, 0]), np.array([0.25, 1.0, 0.75])
    mixture = Mixtures(row, weight, np.array([0.0, 5.0, 2.0]), np.array([1.0, 2.0, 0.5]), 2)
    assert mixture.expectation() == pytest.approx([1.5, 5])
    assert mixture.quantile(0.5)[1] == pytest.approx(5)
    assert mixture.below(np.array([1e9, 5.0])) == pytest.approx([1, 0.5])
    assert mixture.log_density(np.array([0.0, 5.0]))[1] == pytest.approx(-np.log(2 * np.sqrt(2 * np.pi)))


def test_stopped_curves_correct_the_bias_of_promoted_ones() -> None:
    """Eighty trials; the best half continues at each of five boundaries, so three reach the end.

    Those three gained more than others will: taken for examples alone they promise too much to all. With all curves as
    far as they came, all trials that made a leg tell about it, and the prior is that of all (Rubin 1976).
    """
    curves, others = accuracies(80, seed=11), accuracies(60, seed=12)
    steps = np.arange(len(curves[0]))
    stop, alive = np.full(len(curves), steps[-1]), np.arange(len(curves))
    for boundary in (2, 4, 7, 10, 14):
        order = alive[np.argsort(-curves[alive, boundary])]
        alive = order[: max(3, len(order) // 2)]
        stop[order[len(alive) :]] = boundary
    whole = [curve(values) for values, last in zip(curves, stop, strict=True) if last == steps[-1]]
    every = [Curve(curve(v).steps[: n + 1], curve(v).values[: n + 1]) for v, n in zip(curves, stop, strict=True)]
    scores = []
    for lesson in (whole, every):
        model = CurveModel("max", HORIZON, (0.0, 1.0))
        model.fit(lesson)
        posterior = model.predict([curve(values, until=20) for values in others])
        scores.append(posterior.log_density([HORIZON], others[:, -1:]).mean())
    assert len(whole) < 8 and scores[1] > scores[0]
