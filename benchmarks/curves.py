"""How well learning curves are predicted, on recorded ones, and how long it takes.

    python benchmarks/curves.py --data FOLDER [--studies 4] [--ended 30] [--chains 25] [--times]
    python benchmarks/curves.py --data FOLDER --ended 0,2,5,10,30 [--studies 4] [--trials 80]

FOLDER holds taskset_*.npz (TaskSet, Metz et al. 2020): 1,000 recorded curves of 51 validation losses each. The metric
is exp(-loss), which lies between 0 and 1 as the published chain needs it. A study is some of the curves of a task that
have ended, and 150 others that are under way; a trial whose loss was ever not a number has failed and is left out.
Every second task, by name, was used to choose the constants of the model. The others were not: theirs are the figures.

Predicted is the value at the end, after 10, 20, 40 and 60 % of a curve, by

- `last`: a normal distribution around the last value, as wide as what ended trials still gained (root mean square). Of
  reaching the target it says yes or no, by the last value;
- `drift`: the last value plus what each of the ended trials still gained, as `app/search/curves/drift.py` has it;
- `chain`: the chain of Domhan et al. (2015) as HyperDrive shortened it, with emcee, for the first
  few curves of each study only. --chains 0 leaves it out;
- `alone`: our posterior without any ended trial;
- `model`: ours.

LL is the mean log density of what came, in nats. Beside it: the part of what came that lay in the central 50, 80 and
95 %; the mean CRPS (less is better); and the Brier score of "it will reach the target", the value that one ended trial
in ten has reached at the end. Under each table is how far apart the Brier scores of the model and of the two plain
predictions are, on the same curves; the standard error is that of the means of studies. `last`, `drift` and `chain`
have 2 % for a surprise, as the model has: else one crash costs them thousands of nats.

With several numbers of ended trials, a study is --trials others, of which that many came to the end and the
rest were stopped on the way, by their values: see benchmarks/proven.py. Shown are the Brier scores of "it will reach
the target", the value that one trial in ten reaches, of 150 others: for p in all studies, and where p is proven, which
is where `pop` shows it, beside the errors of the last value's verdict and of the base rate.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: the benchmark measures one core

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from proven import table
from scipy.optimize import curve_fit

from app.search.curves import Curve, CurveModel, Posterior
from app.search.curves.drift import Drift, Row
from app.search.curves.mixtures import Mixtures, stack
from app.search.curves.prediction import SURPRISES

Array = npt.NDArray[np.float64]

HORIZON = 50
CUTS = (5, 10, 20, 30)
OTHERS = 150
LEVELS = np.arange(0.5, 20) / 20
HEAD = f"{'':22}{'LL':>8}{'in 50 %':>9}{'in 80 %':>9}{'in 95 %':>9}{'CRPS':>9}{'Brier':>9}"


class Prediction(Protocol):
    """A distribution for each of some curves."""

    def below(self, values: Array) -> Array: ...
    def log_density(self, values: Array) -> Array: ...
    def quantile(self, q: float) -> Array: ...


class Ours:
    """A posterior at the horizon."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior

    def below(self, values: Array) -> Array:
        return self.posterior.below([HORIZON], values[:, None])[:, 0]

    def log_density(self, values: Array) -> Array:
        return self.posterior.log_density([HORIZON], values[:, None])[:, 0]

    def quantile(self, q: float) -> Array:
        return self.posterior.quantile([HORIZON], q)[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--studies", type=int, default=4, help="of each task")
    parser.add_argument("--ended", type=numbers, default=[30], help="trials of a study that have ended; or some, 0,2,5")
    parser.add_argument("--trials", type=int, default=80, help="of a study, where --ended names several numbers")
    parser.add_argument("--chains", type=int, default=25, help="curves of a study that the chain predicts, at each cut")
    parser.add_argument("--times", action="store_true", help="only how long it takes")
    arguments = parser.parse_args()
    tasks = list(recordings(arguments.data))
    parts = (("used in choosing", tasks[::2]), ("not used in choosing", tasks[1::2]))
    if len(arguments.ended) > 1:
        for title, some in parts:
            print(f"\n{len(some)} tasks {title}; Brier scores after {', '.join(f'{2 * cut} %' for cut in CUTS)}")
            for ended in arguments.ended:
                each = (one for _, curves in some for one in studies(curves, arguments.studies, arguments.trials))
                table(each, ended, CUTS)
        return
    (ended,) = arguments.ended
    for title, some in () if arguments.times else parts:
        print(f"\n{len(some)} tasks {title}: {', '.join(name for name, _ in some)}")
        chains = arguments.chains if title.startswith("not") else 0
        show([study for _, curves in some for study in studies(curves, arguments.studies, ended)], chains)
    show_times(tasks[1][1], ended)


def numbers(text: str) -> list[int]:
    """Whole numbers with commas between."""
    return [int(each) for each in text.split(",")]


def recordings(folder: Path) -> Iterator[tuple[str, Array]]:
    paths = sorted(folder.glob("taskset_*.npz"))
    if not paths:
        raise SystemExit(f"there is no taskset_*.npz in {folder}")
    for path in paths:
        losses = np.load(path)["valid_loss"].astype(float)
        yield path.stem.removeprefix("taskset_imdb_"), np.exp(-losses[np.isfinite(losses).all(axis=1)])


def studies(curves: Array, number: int, ended: int) -> Iterator[tuple[Array, Array]]:
    for seed in range(number):
        order = np.random.default_rng(seed).permutation(len(curves))
        yield curves[order[:ended]], curves[order[ended : ended + OTHERS]]


def curve(values: Array) -> Curve:
    return Curve(tuple(range(len(values))), tuple(map(float, values)))


# ----------------------------------------------------------------------------------------------------- predictions


def show(several: Sequence[tuple[Array, Array]], chains: int) -> None:
    scores: dict[tuple[int, str], list[Array]] = defaultdict(list)
    seconds = []
    for ended, others in several:
        target = float(np.quantile(ended[:, -1], 0.9))
        model, new = CurveModel("max", HORIZON, (0, 1)), CurveModel("max", HORIZON, (0, 1))
        model.fit([curve(values) for values in ended])
        for cut in CUTS:
            begun = others[:, : cut + 1]
            curves = [curve(values) for values in begun]
            predictions = {
                "last": last(ended, begun),
                "drift": drift(ended, begun),
                "alone": Ours(new.predict(curves)),
                "model": Ours(model.predict(curves)),
            }
            for name, prediction in predictions.items():
                results = score(prediction, others[:, -1], target)
                if name == "last":
                    results[:, 3] = (begun[:, -1] >= target) != (others[:, -1] >= target)
                scores[cut, name].append(results)
                scores[cut, f"{name}, the chain's"].append(results[:chains])
            if chains:
                start = time.perf_counter()
                chained = surprised(chain(begun[:chains]), ended, begun[:chains])
                seconds.append((time.perf_counter() - start) / chains)
                scores[cut, "chain"].append(score(chained, others[:chains, -1], target))
    for cut in CUTS:
        print(f"\nafter {100 * cut // HORIZON} %\n{HEAD}")
        names = ["last", "drift", "alone", "model", *(["model, the chain's", "chain"] if chains else [])]
        for name in names:
            print(line(name, np.concatenate(scores[cut, name])))
        for name in ("last", "drift"):
            print(f"  Brier of model less that of {name}: {paired(scores[cut, 'model'], scores[cut, name])}")
    if chains:
        print(f"\na chain takes {np.median(seconds):.2f} s")


def score(prediction: Prediction, came: Array, target: float) -> Array:
    """A row for each curve: log density, where in the distribution it came, CRPS, squared error about the target."""
    quantiles = np.stack([prediction.quantile(q) for q in LEVELS], axis=1)
    apart = came[:, None] - quantiles
    crps = 2 * np.where(apart > 0, LEVELS * apart, (LEVELS - 1) * apart).mean(axis=1)
    if isinstance(prediction, Ours):
        reaches = prediction.posterior.prob_reaches([HORIZON], target)[:, 0]
    else:
        reaches = 1 - prediction.below(np.full(len(came), target))
    brier = (reaches - (came >= target)) ** 2
    return np.stack([prediction.log_density(came), prediction.below(came), crps, brier], axis=1)


def paired(ours: Sequence[Array], others: Sequence[Array]) -> str:
    """The mean difference of the Brier scores of the same curves, and its standard error, from study to study."""
    differences = [float((one[:, 3] - other[:, 3]).mean()) for one, other in zip(ours, others, strict=True)]
    error = np.std(differences, ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else np.nan
    return f"{np.mean(differences):+.4f}, standard error {error:.4f}, of {len(differences)} studies"


def line(name: str, scores: Array) -> str:
    inside = [(abs(scores[:, 1] - 0.5) <= part / 2).mean() for part in (0.5, 0.8, 0.95)]
    covered = "".join(f"{part:9.3f}" for part in inside)
    return f"  {name:20}{scores[:, 0].mean():8.2f}{covered}{scores[:, 2].mean():9.4f}{scores[:, 3].mean():9.4f}"


# ------------------------------------------------------------------------------------------------------- baselines


def last(ended: Array, begun: Array) -> Mixtures:
    gains = ended[:, -1] - ended[:, begun.shape[1] - 1]
    rows, width = len(begun), max(float(np.sqrt((gains**2).mean())), 1e-6)
    around = Mixtures(np.arange(rows), np.ones(rows), begun[:, -1], np.full(rows, width), rows)
    return surprised(around, ended, begun)


def drift(ended: Array, begun: Array) -> Mixtures:
    others = Drift([Row(curve(values), values, number) for number, values in enumerate(ended)])
    return surprised(others.predict([Row(curve(values), values) for values in begun], HORIZON).plain, ended, begun)


def surprised(prediction: Mixtures, ended: Array, begun: Array) -> Mixtures:
    rows, each = len(begun), len(SURPRISES)
    where = np.repeat(np.arange(rows), each)
    spread = np.tile(SURPRISES * (ended.max() - np.quantile(ended, 0.1)), rows)
    surprise = Mixtures(where, np.full(len(where), 1 / each), begun[where, -1], spread, rows)
    return stack([(np.full(rows, 0.98), prediction), (np.full(rows, 0.02), surprise)])


# ------------------------------------------------------------------------------------------------------- the chain

WALKERS, SAMPLES, BURN_IN, THIN = 100, 700, 500, 10
Formula = Callable[..., Any]
CHAINED: dict[str, tuple[Formula, tuple[float, ...]]] = {
    "vapor pressure": (lambda x, a, b, c: np.exp(a + b / x + c * np.log(x)), (-0.6, -0.5, 0.05)),
    "ilog2": (lambda x, c, a: c - a / np.log(x + 1), (0.7, 0.4)),
    "weibull": (lambda x, al, be, k, d: al - (al - be) * np.exp(-((k * x) ** d)), (0.7, 0.1, 0.05, 1.0)),
    "pow3": (lambda x, c, a, al: c - a * x**-al, (0.8, 0.5, 0.5)),
    "pow4": (lambda x, c, a, b, al: c - (a * x + b) ** -al, (0.8, 1.0, 1.0, 0.5)),
    "loglog linear": (lambda x, a, b: np.log(a * np.log(x) + b), (0.1, 1.7)),
    "mmf": (lambda x, al, be, k, d: al - (al - be) / (1 + (k * x) ** d), (0.7, 0.1, 0.05, 1.0)),
    "janoschek": (lambda x, a, be, k, d: a - (a - be) * np.exp(-k * x**d), (0.7, 0.1, 0.05, 1.0)),
    "hill3": (lambda x, y, n, k: y * x**n / (k**n + x**n), (0.7, 0.5, 0.5)),
    "log power": (lambda x, a, b, c: a / (1 + (x / np.exp(b)) ** c), (0.7, 1.0, -0.5)),
    "exp4": (lambda x, c, a, al, b: c - np.exp(-a * x**al + b), (0.7, 0.5, 0.5, -0.5)),
}


def chain(begun: Array) -> Mixtures:
    """The chains of some curves: a component for each draw that is left after burning in and thinning."""
    means, spreads = zip(*(_chain(values) for values in begun), strict=True)
    where = np.repeat(np.arange(len(begun)), [len(mean) for mean in means])
    weights = np.concatenate([np.full(len(mean), 1 / len(mean)) for mean in means])
    return Mixtures(where, weights, np.concatenate(means), np.concatenate(spreads), len(begun))


def _chain(y: Array) -> tuple[Array, Array]:
    """Draws of the value at the horizon, and of sigma. Epochs count from 1."""
    import emcee

    x, end = np.arange(1.0, len(y) + 1), float(HORIZON + 1)
    fitted = _fits(x, y)
    start = np.concatenate([*fitted.values(), np.full(len(fitted), 10.0), [max(np.std(np.diff(y)), 1e-3)]])
    rng = np.random.RandomState(0)
    walkers = start * (1 + 1e-6 * rng.standard_normal((WALKERS, len(start))))
    recency = 10 ** (np.arange(len(y)) / len(y))

    def log_probability(theta: Array) -> Array:
        at_points, at_ends = _combine(fitted, theta, x), _combine(fitted, theta, np.array([1.0, end]))
        sigma, weights = theta[:, -1], theta[:, -1 - len(fitted) : -1]
        with np.errstate(all="ignore"):
            off = ((y - at_points) / sigma[:, None]) ** 2 / 2 + np.log(sigma)[:, None]
            allowed = (sigma > 0) & (sigma < 1) & (weights > 0).all(axis=1)
            allowed &= (at_ends[:, 1] >= 0) & (at_ends[:, 1] <= 1) & (at_ends[:, 0] <= at_ends[:, 1])
        result = np.where(allowed, -(recency * off).sum(axis=1), -np.inf)
        return np.where(np.isnan(result), -np.inf, result)

    sampler = emcee.EnsembleSampler(WALKERS, len(start), log_probability, vectorize=True)
    sampler.random_state = rng.get_state()
    sampler.run_mcmc(walkers, SAMPLES, skip_initial_state_check=True)
    draws = sampler.get_chain(discard=BURN_IN, thin=THIN, flat=True)
    mean, sigma = _combine(fitted, draws, np.array([end]))[:, 0], draws[:, -1]
    usable = np.isfinite(mean) & (sigma > 0)
    return (mean[usable], sigma[usable]) if usable.any() else (y[-1:], np.ones(1))


def _fits(x: Array, y: Array) -> dict[str, Array]:
    fitted = {}
    for name, (formula, start) in CHAINED.items():
        try:
            with np.errstate(all="ignore"):
                best, _ = curve_fit(formula, x, y, p0=start, maxfev=2000)
        except (RuntimeError, TypeError):  # no convergence, or fewer points than parameters
            continue
        if np.isfinite(formula(x, *best)).all() and 0 <= formula(HORIZON + 1.0, *best) <= 1:
            fitted[name] = best
    return fitted or {"pow3": np.array([y[-1], 0.0, 1.0])}


def _combine(fitted: dict[str, Array], theta: Array, x: Array) -> Array:
    """The weighted mean of the models, a row for each walker."""
    total, place = np.zeros((len(theta), len(x))), 0
    weights = theta[:, -1 - len(fitted) : -1]
    with np.errstate(all="ignore"):
        for number, (name, best) in enumerate(fitted.items()):
            parameters = theta[:, place : place + len(best)].T[:, :, None]
            total += weights[:, number, None] * CHAINED[name][0](x, *parameters)
            place += len(best)
        return total / weights.sum(axis=1, keepdims=True)


# ------------------------------------------------------------------------------------------------------------ time


def show_times(curves: Array, ended: int) -> None:
    rng, target = np.random.default_rng(0), float(np.quantile(curves[:ended, -1], 0.9))
    model = CurveModel("max", HORIZON, (0, 1))
    past = [curve(values) for values in curves[:ended]]
    begun = [curve(values[: rng.integers(2, HORIZON)] + rng.normal(0, 1e-5)) for values in np.tile(curves, (2, 1))]
    model.fit(past)
    one = [seconds(lambda c=c: model.predict([c]).prob_reaches([HORIZON], target)) for c in begun[:300]]
    model.fit(past)
    whole = seconds(lambda: model.predict(begun[:1000]).prob_reaches([HORIZON], target))
    again = seconds(lambda: model.predict(begun[40:1040]).prob_reaches([HORIZON], target))
    fitting = seconds(lambda: model.fit(past))
    print(f"\none posterior and P(reaches the target) {1e3 * float(np.median(one)):.2f} ms")
    print(f"1,000 of them {1e3 * whole:.0f} ms; where 40 have changed {1e3 * again:.0f} ms")
    print(f"learning from {ended} ended trials {1e3 * fitting:.0f} ms")


def seconds(work: Callable[[], object]) -> float:
    """Of one core: what else runs on the machine does not count."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
