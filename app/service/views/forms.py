"""Hyper-parameters in words."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from stagetree.sequences import Form

FAMILIES = {"Line": "linear", "Power": "exponential"}
"""What study files call a form, where that is another word than its own."""


def form_text(form: Form) -> str:
    """A form for people, in six digits: `0.1`, or `half cosine (init 0.1, low 0, period 20) from step 5`."""
    if form.is_held:
        return _text(form.at(0))
    name = type(form).__name__
    family = FAMILIES.get(name) or re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
    values = {field.name: _text(getattr(form, field.name)) for field in fields(form)}  # type: ignore[arg-type]
    origin = values.pop("origin")
    return f"{family} ({', '.join(f'{name} {value}' for name, value in values.items())}) from step {origin}"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
