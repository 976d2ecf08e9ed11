"""Which hyper-parameters the result depends on, by Optuna's PED-ANOVA (Watanabe et al. 2023, Algorithm 1).

It asks which of them are distributed otherwise among the better trials than among all: no model is fitted.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from app.tuning.samplers.optuna_sampler import load_optuna
from stagetree.models.pages import Importance, ImportanceOf

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FEWEST, MOST = 8, 4_000
"""Trials. Of more, so many are asked, evenly by rank: that changes distributions little, and Optuna copies each."""

WIDE = 50.0
"""Values that differ by such a factor are spread by orders of magnitude."""

METHOD = "PED-ANOVA"
MISSING = "Importance needs Optuna where the server runs: pip install 'stagetree[optuna]'."
TOO_FEW = f"Importance needs {FEWEST} trials with a result at least."


def importance(columns: Mapping[str, Sequence[Any]], values: Sequence[float | None], mode: str) -> Importance:
    """How much each `hp.` column has to do with the values, the most important first; the shares add up to 1.

    Numbers that some trials do not have are taken by quarters, beside those that have none. `note` says why there is
    nothing.
    """
    ranked = sorted((value, row) for row, value in enumerate(values) if value is not None)
    sample = [ranked[number * len(ranked) // MOST] for number in range(MOST)] if len(ranked) > MOST else ranked
    varied = _varied(columns, [row for _, row in sample])
    if len(ranked) < FEWEST or not varied:
        return _answer([], len(ranked), TOO_FEW if len(ranked) < FEWEST else "No hyper-parameter varies.")
    try:
        shares = _shares(varied, [value for value, _ in sample], mode)
    except RuntimeError:
        return _answer([], len(ranked), MISSING)
    parts = [ImportanceOf(name=name, importance=round(share, 6)) for name, share in shares.items()]
    return _answer(sorted(parts, key=lambda each: -each.importance), len(ranked), None)


def _answer(items: list[ImportanceOf], trials: int, note: str | None) -> Importance:
    return Importance(method=METHOD, trials=trials, note=note, items=items)


def _varied(columns: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> dict[str, list[Any]]:
    varied: dict[str, list[Any]] = {}
    for name, column in columns.items():
        chosen = [column[row] for row in rows] if name.startswith("hp.") else []
        if len({str(value) for value in chosen if value is not None}) > 1:
            varied[name] = _by_quarters(chosen) if None in chosen and _is_numeric(chosen) else chosen
    return varied


def _is_numeric(column: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in column if value is not None)


def _by_quarters(column: Sequence[float | None]) -> list[str]:
    """In which quarter of the numbers each lies, as text."""
    bounds = quantiles([value for value in column if value is not None], n=4)
    return [str(value if value is None else bisect(bounds, value)) for value in column]


def _shares(varied: Mapping[str, list[Any]], values: Sequence[float], mode: str) -> dict[str, float]:
    """Raises RuntimeError where Optuna is not installed."""
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
