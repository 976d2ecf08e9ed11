"""Hyper-parameters as functions of the training step: one class per family, each a list of pieces.

A sequence is defined on steps t = 0, 1, 2, ... . Every family describes itself as *pieces*: from some step on, one
elementary function (a `Form`) holds. Values are computed only from the pieces, so two families with the same piece
give the same numbers bit for bit, and equal pieces have equal names.

>>> lr = MultiStep(0.1, [20, 30], 0.1)
>>> lr.at(0), lr.at(20)
(0.1, 0.010000000000000002)
>>> [(piece.start, piece.form) for piece in lr.pieces()][0] == (0, Held(0.1))
True
"""

from __future__ import annotations

from stagetree.sequences.base import (
    FAMILIES,
    Sequence,
    check_count,
    did_you_mean,
    last_change,
    matching_families,
    parse,
    with_ends,
)
from stagetree.sequences.composed import OneCycle, Part, Piecewise, Warmup, Wsd, first_parts
from stagetree.sequences.families import (
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    InverseSqrt,
    Linear,
    MultiStep,
    Polynomial,
    Power,
    Values,
)
from stagetree.sequences.forms import CURVES, Form, Held, MovingForm, Piece
from stagetree.sequences.fractions import has_fraction, is_fraction, needs_length, parse_for_length
from stagetree.sequences.values import (
    Scalar,
    SequenceError,
    as_lists,
    equality_key,
    is_equal_value,
    is_mix,
    is_same_value,
    shares,
    unique_values,
)

__all__ = [
    "CURVES",
    "FAMILIES",
    "Constant",
    "Cosine",
    "Cyclic",
    "Exponential",
    "Form",
    "Held",
    "InverseSqrt",
    "Linear",
    "MovingForm",
    "MultiStep",
    "OneCycle",
    "Part",
    "Piece",
    "Piecewise",
    "Polynomial",
    "Power",
    "Scalar",
    "Sequence",
    "SequenceError",
    "Values",
    "Warmup",
    "Wsd",
    "as_lists",
    "check_count",
    "did_you_mean",
    "equality_key",
    "first_parts",
    "has_fraction",
    "is_equal_value",
    "is_fraction",
    "is_mix",
    "is_same_value",
    "last_change",
    "matching_families",
    "needs_length",
    "parse",
    "parse_for_length",
    "shares",
    "unique_values",
    "with_ends",
]

FAMILIES.update(
    (cls.family, cls)
    for cls in (
        Constant,
        Values,
        MultiStep,
        Linear,
        Exponential,
        Cosine,
        Cyclic,
        Polynomial,
        Warmup,
        Wsd,
        InverseSqrt,
        Power,
        OneCycle,
        Piecewise,
    )
)
