"""Properties of every prediction: for any metric, at any steps, beside any other curves."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.search.curves import Curve, CurveModel, Posterior
from app.search.curves.curve import curve_scale, study_scale
from tests.curves.recordings import HORIZON, STEPS, accuracies, curve
from tests.plans import max_examples

LATER = [60, 80, 100]
ENDED = accuracies(24, seed=1)
UNDER_WAY = accuracies(8, seed=2)


def fit_model(ended: Any = ENDED, **options: Any) -> CurveModel:
    bounds, mode = options.pop("bounds", (None, None)), options.pop("mode", "max")
    model = CurveModel(mode, HORIZON, bounds, **options)
    model.fit([curve(values) for values in ended])
    return model


def ask(model: CurveModel, values: Any = UNDER_WAY, until: int = 40) -> Posterior:
    return model.predict([curve(each, until) for each in values])


# ------------------------------------------------------------------------------------------------------ any metric


@max_examples(10)
@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.booleans(), st.booleans())
def test_the_unit_of_the_metric_and_its_direction_do_not_matter(
    shift: float, factor: float, flip: bool, learnt: bool
) -> None:
    """Also for losses, with and without bounds, before and after the first ended curve."""
    sign = -1.0 if flip else 1.0

    def transform(values: Any) -> Any:
        return sign * (shift + factor * np.asarray(values))

    ended = ENDED if learnt else ENDED[:0]
    bounds = tuple(sorted(transform([0.0, 1.0])))
    one, other = (
        fit_model(ended, bounds=(0.0, 1.0)),
        fit_model(transform(ended), mode="min" if flip else "max", bounds=bounds),
    )
    plain, mapped = ask(one), ask(other, transform(UNDER_WAY))
    near = {"rel": 1e-4, "abs": 1e-4 * factor}
    assert mapped.mean(LATER) == pytest.approx(transform(plain.mean(LATER)), **near)
    assert mapped.quantile(LATER, 0.9) == pytest.approx(transform(plain.quantile(LATER, 0.1 if flip else 0.9)), **near)
    assert mapped.prob_reaches(LATER, float(transform(0.55))) == pytest.approx(
        plain.prob_reaches(LATER, 0.55), abs=1e-4
    )
    first, second = (p.expected_first_step(t, LATER) for p, t in ((plain, 0.55), (mapped, float(transform(0.55)))))
    assert second.expected == pytest.approx(first.expected, abs=0.01)


def test_bounds_are_kept() -> None:
    posterior = ask(fit_model(bounds=(0.0, 0.7)), np.minimum(UNDER_WAY, 0.7))
    assert posterior.quantile(LATER, 0.999).max() <= 0.7 and posterior.quantile(LATER, 0.001).min() >= 0
    assert posterior.mean(LATER).max() <= 0.7
    assert np.all(posterior.prob_reaches(LATER, 0.71) == 0) and np.all(posterior.prob_reaches(LATER, 0) == 1)


def test_a_reward_that_crashes() -> None:
    """HyperDrive's lunar lander: rewards from -500 to 300 (eq. 4). A crashed curve is not expected to recover."""
    lander = -200 + 400 * ENDED
    crashed = -200 + 400 * UNDER_WAY.copy()
    crashed[:, 5:] = -480.0
    model = fit_model(lander, bounds=(-500.0, 300.0))
    posterior = ask(model, crashed)
    assert posterior.mean(LATER).max() < -200
    assert posterior.prob_reaches(LATER, 100.0).max() < 0.1
    assert posterior.quantile(LATER, 0.01).min() >= -500


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_crash_of_any_size_spoils_no_other_curve(mode: Any) -> None:
    """An exploded loss among the ended ones, without bounds: other predictions are as if it were moderate."""
    sign = 1.0 if mode == "max" else -1.0
    ended = sign * ENDED.copy()
    ended[3, 10:] = -sign * 1e18
    posterior, before = (
        ask(fit_model(ended, mode=mode), sign * UNDER_WAY),
        ask(fit_model(sign * ENDED, mode=mode), sign * UNDER_WAY),
    )
    median, spread = posterior.quantile(LATER, 0.5), posterior.spread(LATER)
    assert median == pytest.approx(before.quantile(LATER, 0.5), abs=0.15)
    assert np.median(spread) < 0.2 and np.isfinite(posterior.mean(LATER)).all()


@max_examples(50)
@given(st.lists(st.floats(0.2, 0.8), min_size=1, max_size=20), st.sampled_from(["min", "max"]))
def test_bounds_clip_and_are_no_unit(values: list[float], mode: Any) -> None:
    """Distant bounds have no effect: a curve within them has the scale that it has without them."""
    for scale_of in (curve_scale, study_scale):
        near, far, none = (scale_of(mode, bounds, values) for bounds in ((0.0, 1.0), (-1e3, 1e3), (None, None)))
        assert (near.origin, near.unit) == (far.origin, far.unit) == (none.origin, none.unit)
        assert near.to_metric(near.to_units(np.array([-5.0, 5.0]))) == pytest.approx([0.0, 1.0], abs=1e-9)


@max_examples(50)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=20), st.sampled_from(["min", "max"]))
def test_the_scale_is_monotone_and_goes_back(values: list[int], mode: Any) -> None:
    scale = study_scale(mode, (None, None), values)
    some = np.sort(np.array([*values, -1e7, 1e7]))
    units = scale.to_units(some)
    assert np.all(np.diff(units) * scale.sign >= 0)
    assert scale.to_metric(units) == pytest.approx(some, rel=1e-6, abs=1e-6)


# -------------------------------------------------------------------------------------------------------- any curve


@pytest.mark.slow
@max_examples(12)
@given(st.data())
def test_any_curve_has_an_answer(data: st.DataObject) -> None:
    """Uneven steps, no points or one, constants, numbers of any size; the answer is the same beside other curves."""
    steps = st.lists(st.integers(0, 120), unique=True, max_size=8).map(sorted)
    number = st.floats(-1e9, 1e9) | st.sampled_from([0.0, 0.1, 0.5])
    curves = []
    for at in data.draw(st.lists(steps, min_size=1, max_size=3)):
        constant = data.draw(st.none() | number)
        values = [data.draw(number) if constant is None else constant for _ in at]
        curves.append(Curve(tuple(at), tuple(values)))
    ended = ENDED if data.draw(st.booleans()) else ENDED[:0]
    model = fit_model(ended)
    together = model.predict(curves)
    low, middle, high = (together.quantile(LATER, q) for q in (0.1, 0.5, 0.9))
    assert np.all(low <= middle) and np.all(middle <= high)
    probability = together.prob_reaches(LATER, 0.4)
    assert np.all((probability >= 0) & (probability <= 1)) and np.isfinite(together.mean(LATER)).all()
    first = together.expected_first_step(0.4, LATER)
    assert np.all((first.probability >= 0) & (first.probability <= 1 + 1e-9)) and np.all(first.expected <= 120)
    for i, alone in enumerate(curves):
        other = fit_model(ended).predict([alone])
        assert other.quantile(LATER, 0.5)[0] == pytest.approx(middle[i], rel=1e-6, abs=1e-6)
        assert other.prob_reaches(LATER, 0.4)[0] == pytest.approx(probability[i], abs=1e-6)


LARGEST = sys.float_info.max
EXTREME = [LARGEST, -LARGEST, 1e200, 5e-324, 0.0, 0.5]
EXTREME_CURVES = st.lists(st.sampled_from(EXTREME), min_size=len(STEPS), max_size=len(STEPS))


@max_examples(12)
@given(
    EXTREME_CURVES,
    st.lists(EXTREME_CURVES, max_size=6),
    st.sampled_from([(None, None), (0.0, None), (None, 1e308), (-1e308, 1e308), (1e200, 1e308), (0.0, 5e-324)]),
)
def test_a_metric_may_have_any_finite_value(values: list[float], ended: list[list[float]], bounds: Any) -> None:
    posterior = ask(fit_model(ended, bounds=bounds), [values])
    for target in EXTREME:
        probability = posterior.prob_reaches(LATER, target)
        assert np.all((probability >= 0) & (probability <= 1))
    assert np.isfinite(posterior.mean(LATER)).all()


def test_a_constant_curve_is_expected_to_stay() -> None:
    flat = np.full((1, 20), 0.1)
    for model in (fit_model(), fit_model(ENDED[:0], bounds=(0.0, 1.0)), fit_model(ENDED[:0])):
        posterior = ask(model, flat, until=70)
        assert posterior.quantile([100], 0.5)[0, 0] == pytest.approx(0.1, abs=0.02)
        assert posterior.prob_reaches([100], 0.6)[0, 0] < 0.05


def test_more_points_of_a_smooth_curve_make_it_surer() -> None:
    t = np.arange(1, 21) / 20
    smooth = (0.1 + 0.7 * (1 - np.exp(-4 * t)))[None]
    spreads = [ask(fit_model(), smooth, until).spread([100])[0, 0] for until in (5, 20, 50, 90)]
    assert spreads == sorted(spreads, reverse=True)
    assert ask(fit_model(), smooth, 70).quantile([100], 0.5)[0, 0] == pytest.approx(smooth[0, -1], abs=0.03)


def test_without_a_point_the_prediction_follows_ended_curves() -> None:
    posterior = fit_model().predict([Curve((), ())])
    ends = ENDED[:, -1]
    assert posterior.prob_reaches([100], 0.4)[0, 0] == pytest.approx((ends >= 0.4).mean(), abs=0.1)
    nothing = CurveModel("max", HORIZON, (0.0, 1.0)).predict([Curve((), ())])
    assert nothing.spread([100])[0, 0] > 0.3, "without data the prediction is wide"


def test_uneven_steps_of_a_curve_predict_the_same() -> None:
    t = np.arange(0, 61)
    values = 0.1 + 0.6 * (1 - np.exp(-t / 25))
    uneven = (0, 1, 2, 4, 7, 11, 18, 26, 29, 41, 52, 60)
    model = fit_model()
    dense = model.predict([Curve(tuple(map(int, t)), tuple(values))])
    sparse = model.predict([Curve(uneven, tuple(values[list(uneven)]))])
    assert sparse.quantile([100], 0.5) == pytest.approx(dense.quantile([100], 0.5), abs=0.03)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"finite numbers: at step 7 it is"):
        Curve((3, 7), (0.5, bad))


def test_invalid_curves_are_refused() -> None:
    for steps, values in (((1, 2), (0.5,)), ((2, 2), (0.5, 0.6)), ((-1,), (0.5,))):
        with pytest.raises(ValueError, match="curve"):
            Curve(steps, values)
    with pytest.raises(ValueError, match="order"):
        Curve((1,), (0.5,), ((9, "a"), (5, "b")))
    with pytest.raises(ValueError, match="bound"):
        CurveModel("max", 10, (1.0, 0.0))
    with pytest.raises(ValueError, match="horizon"):
        CurveModel("max", 0)
    with pytest.raises(ValueError, match="mode"):
        CurveModel("best", 10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no curve"):
        fit_model().predict([])


# ----------------------------------------------------------------------------------------------------- answers agree


def test_probabilities_are_monotone_where_they_must_be() -> None:
    posterior = ask(fit_model())
    by_target = np.stack([posterior.prob_reaches(LATER, target) for target in np.linspace(0, 1, 15)])
    assert np.all(np.diff(by_target, axis=0) <= 1e-9)
    by_quantile = np.stack([posterior.quantile(LATER, q) for q in (0.05, 0.25, 0.5, 0.75, 0.95)])
    assert np.all(np.diff(by_quantile, axis=0) >= 0)
    better = UNDER_WAY.copy()
    better[:, :8] += 0.2
    assert np.all(ask(fit_model(), better).mean(LATER) > posterior.mean(LATER))


def test_quantiles_and_probabilities_are_of_one_distribution() -> None:
    posterior = ask(fit_model())
    for q in (0.1, 0.5, 0.8):
        assert posterior.below(LATER, posterior.quantile(LATER, q)) == pytest.approx(q, abs=1e-6)
    grid = np.linspace(-3, 4, 7001)
    density = [math.exp(1) ** posterior.log_density([100], np.full((8, 1), x)) for x in grid]
    assert np.sum(density, axis=0)[:, 0] * 0.001 == pytest.approx(1, abs=0.02)


def test_predictions_of_past_steps_are_the_measured_values() -> None:
    posterior = ask(fit_model(), UNDER_WAY, until=40)
    assert posterior.mean([40])[:, 0] == pytest.approx(UNDER_WAY[:, 7])
    assert posterior.quantile([38], 0.1)[:, 0] == pytest.approx(UNDER_WAY[:, 6] * 0.4 + UNDER_WAY[:, 7] * 0.6)
    assert posterior.prob_reaches([40], 0.3)[:, 0] == pytest.approx((UNDER_WAY[:, 7] >= 0.3).astype(float))


def test_the_first_step_that_reaches_a_target() -> None:
    """Equation 2 of the HyperDrive paper, on top of prob_reaches; a target that was already reached is certain."""
    posterior = ask(fit_model())
    steps = list(range(45, 101, 5))
    first = posterior.expected_first_step(0.5, steps)
    reached = (UNDER_WAY[:, :8] >= 0.5).any(axis=1)
    assert reached.any() and not reached.all()
    chances = np.maximum.accumulate(posterior.prob_reaches(steps, 0.5), axis=1)
    by_hand = (np.diff(chances, axis=1, prepend=0) * steps).sum(axis=1) + (1 - chances[:, -1]) * 100
    assert first.expected[~reached] == pytest.approx(by_hand[~reached])
    assert first.probability[~reached] == pytest.approx(chances[~reached, -1])
    for row in np.flatnonzero(reached):
        assert first.probability[row] == 1
        assert first.expected[row] == 5 * (1 + np.argmax(UNDER_WAY[row] >= 0.5))


# ------------------------------------------------------------------------------------------------------- kept curves


def test_equal_queries_have_equal_answers_after_others_ended() -> None:
    model = fit_model()
    before = ask(model).quantile(LATER, 0.3)
    assert np.array_equal(before, ask(model).quantile(LATER, 0.3))
    old = ask(model)
    model.fit([curve(values) for values in accuracies(5, seed=9)])
    assert np.array_equal(before, old.quantile(LATER, 0.3)), "a posterior keeps the data that it was made from"
    assert not np.allclose(before, ask(model).quantile(LATER, 0.3))
    model.fit([curve(values) for values in ENDED])
    assert np.array_equal(before, ask(model).quantile(LATER, 0.3))


def test_only_changed_curves_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import app.search.curves.model as module

    computed: list[int] = []
    compute = module.posteriors
    monkeypatch.setattr(module, "posteriors", lambda views, prior: computed.append(len(views)) or compute(views, prior))
    model = fit_model(ENDED[:0])
    ask(model, until=40)
    ask(model, until=40)
    model.predict([*(curve(each, 40) for each in UNDER_WAY[1:]), curve(UNDER_WAY[0], 45)])
    assert computed == [len(UNDER_WAY), 1]


def test_the_cost_of_learning_is_bounded_in_the_number_of_ended_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    import app.search.curves.model as module

    looked_at: list[int] = []
    for name in ("posteriors", "learn_prior"):
        compute = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda views, *rest, f=compute: looked_at.append(len(views)) or f(views, *rest)
        )
    fit_model(accuracies(module.MOST_FITTED))
    expected, looked_at[:] = looked_at[:], []
    assert sum(expected) <= module.MOST_FITTED + len(module.CUTS) * module.MOST_LOOKED_BACK
    fit_model(accuracies(3 * module.MOST_FITTED))
    assert looked_at == expected


def test_ended_curves_make_predictions_better() -> None:
    """The log density of the end, of curves that are like the ended ones."""
    others = accuracies(60, seed=5)
    ends = others[:, -1:]
    scores = []
    for ended in (ENDED[:0], ENDED):
        posterior = ask(fit_model(ended, bounds=(0.0, 1.0)), others, until=30)
        scores.append(posterior.log_density([100], ends).mean())
    assert scores[1] > scores[0]
    inside = abs(ask(fit_model(), others, until=30).below([100], ends) - 0.5) <= 0.4
    assert 0.65 <= inside.mean() <= 0.95
