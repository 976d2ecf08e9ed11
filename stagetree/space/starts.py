"""`at`, the short form for the steps at which a value changes.

>>> expand_at({"family": "values", "values": [64, 128], "at": "lr.decay_start"})
{'family': 'values', 'values': [64, 128], 'milestones': [{'of': 'lr.decay_start'}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagetree.sequences import SequenceError, is_mix


def expand_at(value: Any) -> Any:
    """Replace `at`, one milestone or a list, in `values` and `multistep`. A text names a step of another
    hyper-parameter. Raises `SequenceError`.
    """
    if isinstance(value, list | tuple):
        return [expand_at(item) for item in value]
    if not isinstance(value, Mapping) or is_mix(value):
        return value
    value = {name: expand_at(item) for name, item in value.items()}
    if "at" not in value or value.get("family") not in ("values", "multistep"):
        return value
    if "milestones" in value:
        raise SequenceError("at", "must be left out beside milestones, which say the same")
    at = value.pop("at")
    return {
        **value,
        "milestones": [
            {"of": each} if isinstance(each, str) else each for each in (at if isinstance(at, list) else [at])
        ],
    }
