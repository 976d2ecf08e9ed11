"""A study file with some of its fields changed, by dotted path."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from stagetree.spec import Problem, SpecError
from stagetree.spec.tuners import KINDS


def changed(spec: Any, changes: Mapping[str, Any]) -> Any:
    """The study file with the value at each dotted path replaced; None takes a field out. Raises `SpecError`.

    With another kind of tuner, the fields go that only the one before it had.
    """
    found = deepcopy(spec)
    kind = changes.get("tuner.kind")
    if kind in KINDS and kind != found["tuner"]["kind"]:
        found["tuner"] = {field: value for field, value in found["tuner"].items() if field in KINDS[kind].model_fields}
    for path, value in changes.items():
        *owners, last = path.split(".")
        owner = found
        for part in owners:
            owner = owner.setdefault(part, {}) if isinstance(owner, dict) else None
        if not isinstance(owner, dict):
            raise SpecError([Problem(path, "cannot be set: what it would be a field of is not an object")])
        owner[last] = value
        if value is None:
            del owner[last]
    return found
