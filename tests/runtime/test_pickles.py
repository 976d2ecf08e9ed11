from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagetree.runtime.exactness.differences import first_difference, say_the_same

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


def pickled_copy(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@given(value=PLAIN, protocol=st.integers(2, 5))
def test_an_object_and_its_unpickled_copy_have_equal_digests(value: Any, protocol: int) -> None:
    new = [pickled_copy(value), pickled_copy(value), "x", value]
    old = [value, value, "x", value]
    assert say_the_same(pickle.dumps(old, protocol), pickle.dumps(new, protocol))


@given(one=PLAIN, other=PLAIN, protocol=st.integers(2, 5))
def test_different_pickles_have_different_digests(one: Any, other: Any, protocol: int) -> None:
    is_same = repr(one) == repr(other)
    assert say_the_same(pickle.dumps([one], protocol), pickle.dumps([other], protocol)) == is_same


@pytest.mark.parametrize(
    "value", [np.arange(4.0), {"a": np.float64(1.5)}, OrderedDict(a=[1], b=math.nan), {1, 2}, np.random.default_rng(3)]
)
def test_objects_of_classes(value: Any) -> None:
    assert say_the_same(pickle.dumps([value, value]), pickle.dumps([pickled_copy(value), pickled_copy(value)]))
    assert not say_the_same(pickle.dumps([value]), pickle.dumps([value, 1]))


def test_an_object_that_holds_itself() -> None:
    one: list[Any] = [1]
    one.append(one)
    assert say_the_same(pickle.dumps(one), pickle.dumps(pickled_copy(one)))


@pytest.mark.parametrize("content", [b"", b"abc", b"\x80", b"\x80\x04.", pickle.dumps(1)[:-1], pickle.dumps(1) + b"."])
def test_bytes_that_are_no_pickle(content: bytes) -> None:
    assert not say_the_same(content, content + b"x")
    assert not say_the_same(content, pickle.dumps(1))


def test_a_state_that_holds_pickles_of_equal_objects_does_not_differ() -> None:
    name = "weight"
    one, other = [(name, 1.0), (name, 2.0)], [(pickled_copy(name), 1.0), (name, 2.0)]
    left, right = {"all": pickle.dumps(one)}, {"all": pickle.dumps(other)}
    assert left != right and first_difference(left, right) == ""
    assert first_difference(left, {"all": pickle.dumps([(name, 1.0), (name, 3.0)])})
