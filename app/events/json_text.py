"""Reads the JSON texts of the database."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`.

    Equal short strings are one object, also of several texts: each event of a trial names its hyper-parameters, nodes
    and chains again, and plans hold thousands of them.
    """
    try:
        return from_json(text, cache_strings="all")
    except ValueError:  # half a surrogate pair, or very deep: the standard library reads both
        return json.loads(text)
