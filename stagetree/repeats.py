"""Repeats of a trial: what their metrics come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev

Metrics = Mapping[str, float | None]


def means(measured: Sequence[Metrics]) -> Metrics:
    """The mean of each metric that all have; None where one of them is no number."""
    if len(measured) == 1:
        return measured[0]
    return {name: fmean(numbers) if numbers else None for name, numbers in _numbers(measured)}


def deviations(measured: Sequence[Metrics]) -> Mapping[str, float]:
    """The standard deviation, of a sample, of each metric that has a mean of several."""
    return {name: stdev(numbers) for name, numbers in _numbers(measured) if len(numbers) > 1}


def _numbers(measured: Sequence[Metrics]) -> Iterator[tuple[str, list[float]]]:
    """The numbers of each metric that all have; none where one of them is no number."""
    for name in measured[0]:
        if all(name in each for each in measured):
            numbers = [value for each in measured if (value := each[name]) is not None]
            yield name, numbers if len(numbers) == len(measured) else []
