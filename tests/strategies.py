"""Hypothesis strategies that tests share."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import strategies as st

from stagetree.sequences import (
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    InverseSqrt,
    Linear,
    MultiStep,
    OneCycle,
    Part,
    Piecewise,
    Polynomial,
    Power,
    Sequence,
    Values,
    Warmup,
    Wsd,
)

LEAVES = [
    "constant",
    "values",
    "multistep",
    "linear",
    "exponential",
    "cosine",
    "cyclic",
    "polynomial",
    "wsd",
    "inverse_sqrt",
    "power",
    "one_cycle",
]
SOON = st.integers(1, 12)
"""A number of steps that a test can wait for."""

Trial = tuple[dict[str, Any], int]
"""The JSON of a trial's hyper-parameters, and its steps."""


@st.composite
def sequences(draw: st.DrawFn, depth: int = 2, families: tuple[str, ...] = ()) -> Sequence:
    """A sequence of any family, or of `families`. Its numbers are random, so that pieces are not equal by accident."""
    nested = ["warmup", "piecewise"] if depth else []
    family = draw(st.sampled_from(families or [*LEAVES, *nested]))
    number = Random(draw(st.integers(0, 2**32))).random
    return globals()[f"_{family}"](draw, number, depth)


def configurations(names: str = "abc", **options: Any) -> st.SearchStrategy[dict[str, Sequence]]:
    """One sequence for each of the one-letter `names`."""
    return st.fixed_dictionaries({name: sequences(**options) for name in names})


@st.composite
def spaces(draw: st.DrawFn) -> list[Trial]:
    """Trials with few sequences for each hyper-parameter, so that many begin alike; one of them joins two others."""
    pools = [draw(st.lists(sequences(), min_size=1, max_size=3)) for _ in range(draw(st.integers(1, 3)))]
    for pool in pools:
        pool.append(_join(pool[0], pool[-1], draw(st.integers(1, 12))))
    asked = st.integers(1, 40)
    chosen = st.tuples(*(st.sampled_from(pool) for pool in pools))
    trials = draw(st.lists(st.tuples(chosen, asked), min_size=1, max_size=8))
    return [({name: part.to_json() for name, part in zip("abc", hp, strict=False)}, steps) for hp, steps in trials]


def _join(first: Sequence, then: Sequence, steps: int) -> Sequence:
    return Piecewise([Part(first, steps), Part(then)])


def _steps_in_order(draw: st.DrawFn, most: int = 4) -> list[int]:
    return sorted(draw(st.sets(st.integers(0, 30), max_size=most)))


def _constant(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    return Constant(number())


def _values(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    milestones = _steps_in_order(draw)
    return Values([number() for _ in range(len(milestones) + 1)], milestones)


def _multistep(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    return MultiStep(number(), _steps_in_order(draw), number())


def _linear(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    return Linear(number(), draw(st.sampled_from([number(), 0])))


def _exponential(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    return Exponential(number(), draw(st.sampled_from([number(), 1, 0])))


def _cosine(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    period, gamma = draw(st.integers(4, 24)) / 2, draw(st.sampled_from([1, 1.5, 2]))
    return Cosine(number(), number(), period, gamma)


def _cyclic(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    return Cyclic(number(), number(), draw(SOON), draw(SOON))


def _polynomial(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    return Polynomial(number(), number(), draw(SOON), draw(st.sampled_from([0, 0.5, 1, 2])))


def _wsd(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    warmup = draw(st.integers(0, 6))
    shape = draw(st.sampled_from(["linear", "cosine", "sqrt"]))
    return Wsd(number(), warmup, warmup + draw(st.integers(0, 12)), draw(SOON), number(), shape)


def _inverse_sqrt(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    return InverseSqrt(*_curve(draw, number))


def _power(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    return Power(*_curve(draw, number), exponent=draw(st.sampled_from([-1, -0.51, -0.1])))


def _curve(draw: st.DrawFn, number: Any) -> tuple[Any, ...]:
    warmup, decay = draw(st.integers(1, 6)), draw(st.integers(0, 12))
    start = warmup + draw(st.integers(0, 12)) if decay else None
    shape = draw(st.sampled_from(["linear", "cosine", "sqrt"]))
    return number(), warmup, decay, start, number(), number(), shape


def _one_cycle(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    shape = draw(st.sampled_from(["linear", "cosine"]))
    return OneCycle(number(), draw(SOON), draw(SOON), number(), number(), shape)


def _warmup(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    return Warmup(draw(st.integers(0, 8)), draw(sequences(depth - 1)), number())


def _piecewise(draw: st.DrawFn, number: Any, depth: int) -> Sequence:
    skips = st.integers(0, 9)
    parts = draw(st.lists(st.tuples(sequences(depth - 1), SOON, skips), min_size=0, max_size=3))
    return Piecewise([*(Part(*part) for part in parts), Part(draw(sequences(depth - 1)), skip=draw(skips))])
