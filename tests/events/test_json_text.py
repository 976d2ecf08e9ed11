"""The database's JSON is read as the standard library reads it, and equal short strings are one object."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.events import TrialAdded
from app.events.codec import read_json
from app.events.database import Database
from app.events.sql_log import SqlLog

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES, st.booleans())
def test_any_value_is_decoded_like_the_standard_library(value: object, is_ascii: bool) -> None:
    written = json.dumps(value, ensure_ascii=is_ascii)
    assert repr(read_json(written)) == repr(json.loads(written))


@given(st.floats(allow_nan=False))
def test_a_float_has_the_same_bits(value: float) -> None:
    assert struct.pack("d", read_json(json.dumps(value))) == struct.pack("d", value)


@pytest.mark.parametrize("written", ['"\\ud800"', "[" * 500 + "]" * 500, "[NaN, -Infinity]"])
def test_json_extensions_of_the_standard_library_are_decoded(written: str) -> None:
    assert repr(read_json(written)) == repr(json.loads(written))


def test_invalid_json_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1 column 2"):
        read_json("{")


def test_names_in_the_events_of_a_log_are_shared(database: Database) -> None:
    log = SqlLog(database)
    hp = {"rate": {"family": "constant", "value": 1.0}}
    added = [TrialAdded(study="s", trial=number, hp=hp, steps=3, path={"node": 0}, reason={}) for number in range(2)]
    log.append("p", added, expected=0, at=1.0)
    first, second = (each.event for each in log.read("p", after=0, limit=9))
    assert isinstance(first, TrialAdded) and isinstance(second, TrialAdded)
    assert next(iter(first.hp)) is next(iter(second.hp)) and first.hp["rate"]["family"] is second.hp["rate"]["family"]
