"""Fractions: numbers of steps written as a share of the trial's length or of another field.

`{ratio: 0.2}` is a fifth of the trial's steps, `{ratio: 0.25, of: stable_until}` a quarter of the field beside it,
`{of: stable_until}` the field itself. A step of another hyper-parameter, such as `lr.decay_start`, is replaced before:
see `stagetree.space.references`. A fraction can replace any number of steps in a sequence. It is rounded to whole
steps, and halves up. The trial is trained, named and recorded with the number.

>>> resolved({"family": "multistep", "init": 0.1, "milestones": [{"ratio": 0.5}, {"ratio": 0.75}], "gamma": 0.1}, 200)
{'family': 'multistep', 'init': 0.1, 'milestones': [100, 150], 'gamma': 0.1}
>>> resolved({"family": "wsd", "peak": 0.1, "warmup": 10, "decay": {"ratio": 0.2}}, 200)
{'family': 'wsd', 'peak': 0.1, 'warmup': 10, 'decay': 40, 'stable_until': 160}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stagetree.sequences.base import FAMILIES, check_number, did_you_mean, parse
from stagetree.sequences.values import SequenceError, is_mix


def fraction(ratio: Any = 1, of: str | None = None) -> dict[str, Any]:
    """A fraction as a space writes it: of the trial's length, of the field `of` of the same sequence, or of a step of
    another hyper-parameter, such as lr.decay_start.
    """
    return {"ratio": ratio} if of is None else {"ratio": ratio, "of": of}


def parse_for_length(value: Any, steps: int | None, path: str = "") -> Any:
    """Parse a sequence for a trial of `steps` steps, or None if the length is unknown.

    Raises `SequenceError`, also for a fraction of an unknown length.
    """
    return parse(resolve_fractions(value, steps, path), path)


def resolve_fractions(value: Any, steps: int | None, path: str = "") -> Any:
    """Replace each fraction by a number of steps, and add fields that follow from the trial's length."""
    answer = _resolve(value, {}, steps, path, ())
    family = FAMILIES.get(str(answer.get("family"))) if isinstance(answer, Mapping) else None
    if family is None or steps is None or family.length_field(answer) in {None, *answer}:
        return answer
    try:
        return family.fill_length_field(answer, steps)
    except SequenceError as error:
        raise SequenceError(error.nested_field(path), error.problem) from None


def _resolve(value: Any, owner: Mapping[str, Any], steps: int | None, path: str, through: tuple[str, ...]) -> Any:
    """Resolve the fractions in `value`. `owner` is the object around it; `through` the fields being resolved, to find
    circles.
    """
    if is_fraction(value):
        return _steps(value, owner, steps, path, through)
    if isinstance(value, Mapping) and not is_mix(value):
        return {name: _resolve(item, value, steps, f"{path}.{name}", (str(name),)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_resolve(item, owner, steps, f"{path}[{n}]", through) for n, item in enumerate(value)]
    return value


def _steps(
    value: Mapping[str, Any], owner: Mapping[str, Any], steps: int | None, path: str, through: tuple[str, ...]
) -> int:
    ratio, of = value.get("ratio", 1), value.get("of")
    try:
        check_number("ratio", ratio)
    except SequenceError as error:
        raise SequenceError(f"{path}.ratio".strip("."), error.problem) from None
    if "of" not in value:
        whole: float = _length(steps, path)
    else:
        whole = of if isinstance(of, int) else _field(str(of), owner, steps, path, through)
    return math.floor(float(ratio) * whole + 0.5)


def _length(steps: int | None, path: str) -> int:
    if steps is None:
        example = "{ratio: 0.2, of: stable_until}"
        raise SequenceError(
            path.strip("."), f"must be a fraction of another field, such as {example}: the trial's length is not known"
        )
    return steps


def _field(name: str, owner: Mapping[str, Any], steps: int | None, path: str, through: tuple[str, ...]) -> float:
    """The value of the field that a fraction refers to."""
    others = [each for each in owner if each not in ("family", *through[:1])]
    at = f"{path}.of".strip(".")
    if "." in name:
        raise SequenceError(at, f"must be a field beside it: {name} is known in spaces and in listed trials only")
    if name not in owner or name in through:
        expected = ", ".join(others) or "no other field"
        raise SequenceError(at, f"must be one of {expected}, got {name!r}{did_you_mean(name, others)}")
    number = _resolve(owner[name], owner, steps, at, (*through, name))
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise SequenceError(at, f"must be a field that is a number, and {name} is {number!r}")
    return number


def is_fraction(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and value.keys() <= {"ratio", "of"}


def has_fraction(value: Any) -> bool:
    """Whether the value is a fraction or contains one."""
    if is_mix(value):
        return False
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return is_fraction(value) or any(map(has_fraction, inside))


def needs_length(value: Any) -> bool:
    """Whether parsing the entry needs the trial's length, or another hyper-parameter."""
    if is_fraction(value):
        return "of" not in value or "." in str(value["of"])
    if isinstance(value, Mapping) and not is_mix(value):
        family = FAMILIES.get(str(value.get("family")))
        follows = family is not None and family.length_field(value) not in {None, *value}
        return follows or any(map(needs_length, value.values()))
    return isinstance(value, list | tuple) and any(map(needs_length, value))
