"""Mixes: weights of named streams, for example of training data.

`{mix: {web: 0.7, code: 0.3}}` is allowed like any other value. The keys inside `mix` are names of streams. The value
is a string with the share of each stream, the same for every way to write the mix.

>>> mix_value({"mix": {"web": 7, "code": 3}})
'code:0.3,web:0.7'
>>> mix_value({"mix": {"web": 2, "code": 0}})
'web'
>>> shares("code:0.3,web:0.7")
{'code': 0.3, 'web': 0.7}
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeGuard

from stagetree.sequences.errors import SequenceError

__all__ = ["check_stream", "is_mix", "mix", "mix_value", "shares"]

_BETWEEN, _BESIDE = ",", ":"
_EXAMPLE = "{mix: {web: 0.7, code: 0.3}}"


def mix(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A mix as a space or a sequence writes it. Weights are numbers >= 0 or distributions; only their ratios count."""
    return {"mix": dict(weights)}


def is_mix(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping) and value.keys() == {"mix"}


def mix_value(written: Mapping[str, Any], path: str = "") -> str:
    """The normal form of a mix: each stream with its share, sorted by name, or the name alone for one stream.

    Raises `SequenceError`.
    """
    path, weights = f"{path}.mix".strip("."), written["mix"]
    if not isinstance(weights, Mapping) or not weights:
        raise SequenceError(path, f"must map names of streams to their weights, got {weights!r}")
    exact = {check_stream(name, path): _weight(weight, f"{path}.{name}") for name, weight in weights.items()}
    if not (total := sum(exact.values())):
        raise SequenceError(path, "must have a weight above 0")
    parts = {name: float(exact[name] / total) for name in sorted(exact)}
    return _format_shares({name: share for name, share in parts.items() if share})


def shares(value: Any) -> dict[str, float]:
    """The share of each stream in a value of the hyper-parameter `data`: a mix, or the name of one stream.

    Accepts both the trainer's string and the object of a study file. Raises ValueError.
    """
    text = mix_value(value) if is_mix(value) else value
    if not isinstance(text, str):
        raise ValueError(f"must be the name of a stream, or a mix such as {_EXAMPLE}, not {value!r}")
    if _BESIDE not in text:
        return {check_stream(text, ""): 1.0}
    try:
        by_stream = {name: float(share) for name, share in (part.split(_BESIDE) for part in text.split(_BETWEEN))}
    except ValueError:
        by_stream = {}
    if _format_shares(dict(sorted(by_stream.items()))) != text or not _is_whole(list(by_stream.values())):
        raise ValueError(f"must be a mix such as {_EXAMPLE}, not {text!r}")
    return by_stream


def _is_whole(parts: list[float]) -> bool:
    return min(parts) > 0 and abs(sum(parts) - 1) < 1e-9


def _format_shares(parts: Mapping[str, float]) -> str:
    return _BETWEEN.join(parts if len(parts) == 1 else (f"{name}{_BESIDE}{share!r}" for name, share in parts.items()))


def _weight(weight: Any, path: str) -> Fraction:
    """The exact decimal as written: 0.1 is a tenth."""
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 <= weight <= sys.float_info.max:
        raise SequenceError(path, f"must be a finite number from 0 on, got {weight!r}")
    return Fraction(repr(weight))


def check_stream(name: Any, path: str) -> str:
    """Return the name of a stream. Raises `SequenceError`."""
    if not isinstance(name, str) or not name or set(name) & {_BETWEEN, _BESIDE}:
        raise SequenceError(path, f"must name a stream by a string without , and :, got {name!r}")
    return name
