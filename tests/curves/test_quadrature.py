"""The posterior of a single curve is calibrated on its own prior, and equals brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, multivariate_normal

from app.search.curves import quadrature as q
from app.search.curves.curve import FAMILIES, NUM_SHAPES, shapes
from tests.plans import max_examples

Array = q.Array


def draw(rng: np.random.Generator, clock: Array) -> Array:
    """A curve from the prior."""
    node = tuple(rng.integers(size) for size in q.GRID)
    return rng.multivariate_normal(*moments(node, clock), method="cholesky")


def moments(node: tuple[int, ...], clock: Array) -> tuple[Array, Array]:
    """Mean and covariance of a node's curves, from the definition."""
    memory, shape, sigma, gain = node
    line = np.stack([np.ones(len(clock)), shapes(clock)[shape]], axis=1)
    mean, spread = q.GAINS[gain]
    apart = np.abs(clock[:, None] - clock)
    correlation = np.exp(-apart / q.MEMORIES[memory]) if q.MEMORIES[memory] else np.eye(len(clock))
    covariance = line @ np.diag([q.LEVEL_SPREAD**2, spread**2]) @ line.T + q.SIGMAS[sigma] ** 2 * correlation
    return line @ [0.0, mean], covariance


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3, 12])
def test_calibrated_on_its_own_prior(number: int) -> None:
    """Simulation-based calibration (Talts et al. 2018): where the truth lies in the posterior is uniform."""
    rng, ranks = np.random.default_rng(number), []
    for clock in (np.linspace(0, 1, 20), np.sort(rng.uniform(0, 1, 20))):
        curves = np.array([draw(rng, clock) for _ in range(250)])
        for later in (number, 19):
            fits = q.Fits(q.fits(tuple(clock[:number]), curves[:, :number], q.uniform()))
            ranks.append(fits.predict(np.full(250, clock[later])).below(curves[:, later]))
    for several in ranks:
        assert kstest(several, "uniform").pvalue > 0.003


def test_a_wrong_prior_is_noticed() -> None:
    """The same test on curves with noise that no node has. Otherwise the test could pass for any prior."""
    rng, clock = np.random.default_rng(0), np.linspace(0, 1, 20)
    curves = np.array([draw(rng, clock) for _ in range(250)]) + 0.3 * rng.standard_t(1, (250, 20))
    fits = q.Fits(q.fits(tuple(clock[:12]), curves[:, :12], q.uniform()))
    assert kstest(fits.predict(np.ones(250)).below(curves[:, 19]), "uniform").pvalue < 0.003


@max_examples(20)
@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans())
def test_evidence_and_prediction_follow_the_definition(seed: int, number: int, even: bool) -> None:
    rng = np.random.default_rng(seed)
    clock = (
        np.linspace(0, 1, number + 1) if even else np.sort(rng.uniform(0, 1, number + 1)) + np.arange(number + 1) / 9
    )
    curve = rng.normal(0, 0.1, number + 1)
    design = q.Design(tuple(clock[:-1]))
    evidence = design.evidence(design.sums(curve[None, :-1]))[0].reshape(q.GRID)
    for node in rng.integers(0, q.GRID, (5, 4)):
        mean, covariance = moments(tuple(node), clock)
        expected = multivariate_normal(mean[:-1], covariance[:-1, :-1], allow_singular=True).logpdf(curve[:-1])
        if expected > -1e5:  # below, what rounding leaves of the covariance decides
            assert evidence[tuple(node)] == pytest.approx(expected, rel=1e-3, abs=1e-3)
        prior = np.full(q.NUM_NODES, -1e9)
        prior[np.ravel_multi_index(tuple(node), q.GRID)] = 0.0
        after = q.Fits(q.fits(tuple(clock[:-1]), curve[None, :-1], prior)).predict(clock[-1:])
        weights = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
        assert after.mean[0] == pytest.approx(mean[-1] + weights @ (curve[:-1] - mean[:-1]), rel=1e-3, abs=1e-4)
        variance = covariance[-1, -1] - weights @ covariance[:-1, -1]
        assert after.spread[0] ** 2 == pytest.approx(variance, rel=2e-2, abs=1e-9)


def test_without_points_it_is_the_prior() -> None:
    (fit,) = q.fits((), np.zeros((1, 0)), q.uniform())
    assert len(fit.node) == q.NUM_NODES
    at = q.Fits([fit]).predict(np.ones(1))
    assert at.expectation()[0] == pytest.approx(q.GAINS[:, 0].mean() * shapes(np.ones(1)).mean(), abs=1e-6)


def test_shapes_begin_at_nought_and_end_at_one() -> None:
    values = shapes(np.linspace(0, 1, 101))
    assert values.shape == (NUM_SHAPES, 101)
    assert np.all(values[:, 0] == 0)
    assert np.abs(values).max(axis=1) == pytest.approx(1)
    assert np.isfinite(shapes(np.array([0.0, 1e-9, 1, 7]))).all()


def test_each_family_of_the_paper_is_an_affine_shape() -> None:
    """The published formulas, with x = 1 + clock / unit, at parameters that are nodes of the quadrature."""
    clock = np.linspace(0, 1, 30)
    half = np.log(2) ** (1 / 2.0) / 0.4  # the k with which (k x) ** 2 is ln 2 at 0.4
    published = {
        "pow3": 0.9 - 0.5 * (1 + clock / 0.2) ** -1.0,
        "pow4": 0.9 - (2 * (1 + clock / 0.2)) ** -3.0,
        "ilog2": 0.9 - 0.3 / np.log((1 + clock / 0.1) + 1),
        "loglog_linear": np.log(0.1 * np.log(1 + clock / 0.1) + 0.2),
        "vapor": np.exp(-0.2 - 3 / (1 + clock / 0.02) - 0.3 * np.log(1 + clock / 0.02)),
        "weibull": 0.9 - (0.9 - 0.1) * np.exp(-((half * clock) ** 2)),
        "janoschek": 0.9 - (0.9 - 0.1) * np.exp(-(half**2) * clock**2),
        "exp4": 0.9 - np.exp(-(half**2) * clock**2 - 0.3),
        "mmf": 0.9 - (0.9 - 0.1) / (1 + (clock / 0.4) ** 2),
        "hill3": 0.9 * clock**2 / (0.4**2 + clock**2),
        "log_power": 0.9 / (1 + (np.maximum(clock, 1e-12) / np.exp(np.log(0.4))) ** -2.0),
    }
    ours = shapes(clock)
    for name, curve in published.items():
        lines = [np.stack([np.ones(30), shape], axis=1) for shape in ours]
        left = [np.abs(line @ np.linalg.lstsq(line, curve, rcond=None)[0] - curve).max() for line in lines]
        assert min(left) < 1e-9, name
    assert len(published) == 11 and len(FAMILIES) == 6
