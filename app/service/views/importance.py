"""The importance of hyper-parameters, by Optuna's PED-ANOVA (Watanabe et al. 2023, Algorithm 1).

It compares the distribution of each hyper-parameter among the better trials with that among all. It fits no model.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from app.domain.leaderboard import ENOUGH
from stagetree.models.pages import Importance, ImportanceOf

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FEWEST, MOST = ENOUGH, 4_000
"""Trials. With fewer, the best tenth would be one or two. More are thinned evenly by rank, since Optuna copies each;
that changes distributions little."""

RESAMPLES, MOST_RESAMPLED = 20, 100
"""Bootstrap resamples for the interval, and the most trials in each; one resample in twenty is cut at either end.
Optuna's time grows with the square of the trials. For more trials the interval is wider than necessary."""

WIDE = 50.0
"""Values that differ by a larger factor are compared on a log scale."""

METHOD = "PED-ANOVA"
MISSING = "Importance needs Optuna where the server runs: pip install 'stagetree[optuna]'."
NONE_VARIES = "No hyper-parameter varies."
TOO_FEW = f"Importance needs at least {FEWEST} trials with a result; {{}} at {{}}."


def importance(
    columns: Mapping[str, Sequence[Any]], values: Sequence[float | None], mode: str, rung: int | None = None
) -> Importance:
    """The importance of each `hp.` column for the values, the greatest first; the shares add up to 1.

    Numbers that some trials lack are compared by quartile, with the missing ones as one more class. `note` gives the
    reason for an empty answer.
    """
    ranked = sorted((value, row) for row, value in enumerate(values) if value is not None)
    answer = partial(Importance, method=METHOD, rung=rung, trials=len(ranked))
    sample = [ranked[number * len(ranked) // MOST] for number in range(MOST)] if len(ranked) > MOST else ranked
    varied = _varying_columns(columns, [row for _, row in sample])
    if len(ranked) < FEWEST:
        where = "the trial's end" if rung is None else f"rung {rung}"
        have = f"{len(ranked)} {'has' if len(ranked) == 1 else 'have'} one"
        return answer(items=[], note=TOO_FEW.format(have, where))
    if not varied:
        return answer(items=[], note=NONE_VARIES)
    try:
        parts = _parts(varied, [value for value, _ in sample], mode)
    except RuntimeError:
        return answer(items=[], note=MISSING)
    return answer(items=sorted(parts, key=lambda each: -each.importance), note=None)


def _parts(varied: Mapping[str, list[Any]], values: Sequence[float], mode: str) -> list[ImportanceOf]:
    """Each share with its interval. Raises RuntimeError without Optuna."""
    shares = _shares(varied, values, mode)
    drawn = [_resampled_shares(varied, values, mode, Random(number)) for number in range(RESAMPLES)]
    parts = []
    for name, share in shares.items():
        again = sorted(each.get(name, 0.0) for each in drawn)
        low, high = min(share, again[1]), max(share, again[-2])
        parts.append(ImportanceOf(name=name, importance=round(share, 6), interval=[round(low, 6), round(high, 6)]))
    return parts


def _resampled_shares(
    varied: Mapping[str, list[Any]], values: Sequence[float], mode: str, random: Random
) -> dict[str, float]:
    """The shares in a bootstrap resample of the trials."""
    rows = random.choices(range(len(values)), k=min(MOST_RESAMPLED, len(values)))
    columns = {name: [column[row] for row in rows] for name, column in varied.items()}
    still = {name: column for name, column in columns.items() if len(set(map(str, column))) > 1}
    return _shares(still, [values[row] for row in rows], mode) if still else {}


def _varying_columns(columns: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> dict[str, list[Any]]:
    varied: dict[str, list[Any]] = {}
    for name, column in columns.items():
        chosen = [column[row] for row in rows] if name.startswith("hp.") else []
        if len({str(value) for value in chosen if value is not None}) > 1:
            varied[name] = _quartile_labels(chosen) if None in chosen and _is_numeric(chosen) else chosen
    return varied


def _is_numeric(column: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in column if value is not None)


def _quartile_labels(column: Sequence[float | None]) -> list[str]:
    """The quartile of each number, as text."""
    bounds = quantiles([value for value in column if value is not None], n=4)
    return [str(value if value is None else bisect(bounds, value)) for value in column]


def _shares(varied: Mapping[str, list[Any]], values: Sequence[float], mode: str) -> dict[str, float]:
    """Raises RuntimeError without Optuna."""
    from app.search.samplers.optuna_sampler import load_optuna  # brings all samplers, which other answers need not

    optuna = load_optuna()
    spaces = {name: _distribution(column) for name, column in varied.items()}
    study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={name: _choice(column[row], spaces[name]) for name, column in varied.items()},
                distributions=spaces,
                value=value,
            )
            for row, value in enumerate(values)
        ]
    )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return {
        name: float(share)
        for name, share in optuna.importance.get_param_importances(study, evaluator=evaluator).items()
    }


def _distribution(column: Sequence[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if _is_numeric(column) and None not in column:
        low, high = min(column), max(column)
        return FloatDistribution(float(low), float(high), log=low > 0 and high / low > WIDE)
    return CategoricalDistribution(sorted({str(value) for value in column}))


def _choice(value: Any, space: BaseDistribution) -> Any:
    from optuna.distributions import CategoricalDistribution

    return str(value) if isinstance(space, CategoricalDistribution) else float(value)
