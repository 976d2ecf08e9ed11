"""A state as an image: all of it comes back, bit for bit, and other programs can read its tensors."""

from __future__ import annotations

import json
import math
import mmap
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from images import image_of
from opened import open_files
from safetensors.torch import load, save

from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.checkpoints.image_layout import DTYPES
from stagetree.runtime.checkpoints.state_format import Layout, read, unpack, write
from stagetree.trainer.divided_tensors import Unsavable


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return alike and one.contiguous().view(-1).view(torch.uint8).equal(
            other.contiguous().view(-1).view(torch.uint8)
        )
    if isinstance(one, dict):
        return type(other) is dict and [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


STATE = {
    "model": {"0.weight": torch.randn(3, 4), "0": {"weight": torch.randn(2)}, "empty": torch.empty(0, 5)},
    "optimizer": [(1, 2.5, "three", None, True), {3: torch.tensor(7), "many": 10**30, "text": "\udcff\0"}],
    "odd": [math.inf, math.nan, [], {}, ()],
    "views": [torch.arange(12).reshape(3, 4).T, torch.ones(1).expand(5), torch.arange(9)[::2]],
    "grad": torch.nn.Parameter(torch.randn(2)),
    **{
        name: torch.ones(3, dtype=torch.uint8).repeat(8).view(dtype) for name, dtype in DTYPES.items() if name != "BOOL"
    },
    "BOOL": torch.tensor([True, False]),
}


def test_all_values_are_restored() -> None:
    restored = unpack(image_of(STATE))
    assert same(STATE | {"grad": STATE["grad"].detach()}, restored)


def test_arrays_and_bytes_are_restored() -> None:
    state: dict[str, Any] = {"booster": b"\x00\xff", "none": b"", "point": np.array(2.5)}
    state |= {"columns": np.arange(6.0).reshape(2, 3).T, "mask": np.array([True, False]), "many": [np.zeros((0, 3))]}
    state["rows"] = np.arange(6, dtype=np.uint16).reshape(2, 3)
    restored = unpack(image_of(state))
    assert restored["booster"] == b"\x00\xff" and restored["none"] == b""
    for name in ("point", "rows", "columns", "mask"):
        assert restored[name].dtype == state[name].dtype and np.array_equal(restored[name], state[name]), name
        assert restored[name].shape == state[name].shape
    assert restored["many"][0].shape == (0, 3)
    restored["columns"] += 1  # it is the trainer's own


NUMBERS = [kind for kind in np.sctypeDict.values() if issubclass(kind, np.number | np.bool_)]


@pytest.mark.parametrize("kind", sorted(set(NUMBERS), key=lambda kind: kind.__name__))
def test_numpy_scalars_are_restored_with_type_and_bits(kind: type[np.generic]) -> None:
    """A float32 that a late step put into the state ended all trials; a float64 came back as a float."""
    numbers = [kind(0), kind(1)]
    if issubclass(kind, np.inexact):
        numbers += [kind(-0.0), kind("nan"), kind("inf"), kind(1) / kind(3)]
    state = {"best": numbers[-1], "all": numbers, "in": (numbers[0],)}
    restored = unpack(image_of(state))
    assert type(restored["best"]) is kind and type(restored["in"][0]) is kind
    assert [each.tobytes() for each in restored["all"]] == [each.tobytes() for each in numbers]


def test_numpy_times_are_restored() -> None:
    state = [np.datetime64("2026-11-28"), np.timedelta64(3, "ms"), np.timedelta64(3)]
    restored = unpack(image_of(state))
    assert [(each, each.dtype) for each in restored] == [(each, each.dtype) for each in state]


def test_a_file_is_mapped_and_never_changed() -> None:
    fd, _ = write({"weights": torch.zeros(1000)})
    read(fd)["weights"].fill_(1.0)
    assert read(fd)["weights"].sum() == 0
    os.close(fd)


def test_an_image_does_not_change_with_the_model() -> None:
    weights = torch.zeros(4)
    image = image_of({"weights": weights})
    weights += 1
    assert unpack(image)["weights"].sum() == 0


def test_other_programs_read_the_tensors_by_their_names() -> None:
    tensors = load(image_of({"trainer": {"model": {"0.weight": torch.ones(3), "bias": torch.zeros(2)}}}))
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "trainer.model.0.weight": [1.0, 1.0, 1.0],
        "trainer.model.bias": [0.0, 0.0],
    }


def test_colliding_names_are_made_distinct() -> None:
    state = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, 1: torch.zeros(2), "1": torch.ones(2)}
    assert len(load(image_of(state))) == 4 and same(unpack(image_of(state)), state)


def test_checkpoints_of_the_previous_version_are_read() -> None:
    tree = {"$pairs": [["trainer", {"$pairs": [["w", {"$tensor": "0"}], ["n", 3]]}], ["t", {"$tuple": [1, None]}]]}
    image = save({"0": torch.arange(3.0)}, metadata={"tree": json.dumps(tree)})
    assert same(unpack(image), {"trainer": {"w": torch.arange(3.0), "n": 3}, "t": (1, None)})


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"model": [1, object()]}, r'state\["model"\]\[1\] is a object; a state holds tensors, arrays'),
        (
            {"model": {"w": torch.ones(2).to_sparse()}},
            r'state\["model"\]\["w"\] is a tensor of torch.float32 and torch.sp',
        ),
        ({"w": torch.ones(2, dtype=torch.complex128)}, r'state\["w"\] is a tensor of torch.complex128'),
        ({(1, 2): 3}, "state has a key that is a tuple; keys are text or numbers"),
        ({"at": {np.int64(3): 1}}, r'state\["at"\] has a key that is a numpy.int64'),
        ({"names": np.array(["a"], dtype=object)}, r'state\["names"\] is an array of object'),
        ({"seen": {1, 2}}, r'state\["seen"\] is a set; write list\(seen\)'),
        ({"last": [2 + 1j]}, r'state\["last"\]\[0\] is a complex; write \[it.real, it.imag\]'),
        ({"opt": torch.optim.SGD([torch.ones(1)])}, r'state\["opt"\] is a torch.*SGD; write opt.state_dict\(\)'),
        ({"row": np.zeros(1, dtype="i4,f4")[0]}, r'state\["row"\] is a numpy.void; write row.item\(\)'),
        ({"file": Path("a")}, r'state\["file"\] is a pathlib.PosixPath; write str\(file\)'),
    ],
)
def test_values_that_cannot_be_saved_are_named(state: Any, words: str) -> None:
    with pytest.raises(Unsavable, match=words):
        write(state)


class OnGpu(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize("room", [0, 8])
def test_copies_from_a_gpu_are_complete_even_if_one_fails(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Its memory is filled again at once: a copy that is still under way would write into the next state."""
    stream = MagicMock()
    for name, made in (("Stream", stream), ("current_stream", MagicMock()), ("stream", nullcontext())):
        monkeypatch.setattr(torch.cuda, name, MagicMock(return_value=made))
    layout = Layout.plan({"first": torch.ones(1).as_subclass(OnGpu), "second": torch.ones(2).as_subclass(OnGpu)})
    with mmap.mmap(-1, layout.size - 8 + room) as area, nullcontext() if room else pytest.raises(ValueError):
        layout.fill(area)
    assert [call[0] for call in stream.mock_calls] == ["wait_stream", "synchronize"]


def test_a_state_that_holds_itself_is_refused() -> None:
    state: dict[str, Any] = {}
    state["self"] = [state]
    with pytest.raises(Unsavable, match="holds itself"):
        write(state)


def test_a_full_disk_is_an_error_before_any_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = open_files()
    with pytest.raises(OSError, match="No space"):
        state_format.write({"w": torch.ones(3)})
    assert not open_files() - before
