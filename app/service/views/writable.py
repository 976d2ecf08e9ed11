"""Values in words. Halves of characters, which no encoding has, are spelled out, so that all text can be written."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any, TypeVar

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


T = TypeVar("T")
HALVES = re.compile("[\ud800-\udfff]")


def writable(value: T) -> T:
    """The same, with the halves of characters in all its text spelled out: a traceback may hold bytes of anything."""
    return _writable(value)  # type: ignore[no-any-return]


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return HALVES.sub(lambda found: f"\\u{ord(found.group()):04x}", value) if not value.isascii() else value
    if isinstance(value, dict):
        return {_writable(name): _writable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(inner) for inner in value]
    return value
