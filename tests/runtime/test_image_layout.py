"""The place of tensors in a state: loaded tensors are aligned like torch's own, so kernels add up alike."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from images import image_of
from safetensors.torch import load, save
from torch import Tensor, nn

from app.workers.state import State
from stagetree.runtime.checkpoints.image_layout import DTYPES
from stagetree.runtime.checkpoints.safetensors_header import ALIGNMENT, LARGE
from stagetree.runtime.checkpoints.state_format import read, unpack, write
from stagetree.runtime.checkpoints.weight_files import export_weights, weight_parts

SIZES = st.one_of(st.integers(0, 70), st.sampled_from([LARGE - 1, LARGE, LARGE + 1, LARGE + 64, 3 * LARGE + 7]))


def numbers(size: int, dtype: torch.dtype) -> Tensor:
    content = torch.arange(size * dtype.itemsize, dtype=torch.int64).remainder(2 if dtype == torch.bool else 251)
    return content.to(torch.uint8).view(dtype)


def tensors_in(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, np.ndarray):
        yield torch.from_numpy(state)
    elif isinstance(state, dict):
        for each in state.values():
            yield from tensors_in(each)


@given(st.lists(st.tuples(SIZES, st.sampled_from(sorted(DTYPES))), max_size=12))
def test_tensors_of_all_sizes_are_aligned_and_restored(sizes: list[tuple[int, str]]) -> None:
    state = {str(at): numbers(size, DTYPES[dtype]) for at, (size, dtype) in enumerate(sizes)}
    fd, size = write(state)
    try:
        restored = read(fd)
        image = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        assert len(image) == size and load_names(bytes(image)) >= set(state)
        for found in (restored, unpack(bytes(image))):
            assert all(each.data_ptr() % ALIGNMENT == 0 for each in tensors_in(found))
            assert [*found] == [*state]
            for name, tensor in state.items():
                assert found[name].dtype == tensor.dtype
                assert found[name].view(torch.uint8).equal(tensor.view(torch.uint8))
    finally:
        State(fd, size).close()


def load_names(image: bytes) -> set[str]:
    """The names that other programs see; a file with gaps between its tensors is refused."""
    return set(load(image))


def test_arrays_are_aligned() -> None:
    fd, _ = write({"a": np.arange(3, dtype=np.int8), "b": np.arange(33, dtype=np.float32), "c": np.arange(5.0)})
    assert all(each.data_ptr() % ALIGNMENT == 0 for each in tensors_in(read(fd)))


def test_an_image_of_an_older_version_is_read_aligned() -> None:
    tree = {"$pairs": [["a", {"$tensor": "0"}], ["b", {"$tensor": "1"}]]}
    image = save({"0": torch.arange(33.0), "1": torch.arange(LARGE + 1.0)}, metadata={"tree": json.dumps(tree)})
    fd, _ = write({})
    with open(fd, "wb", closefd=True) as file:
        file.write(image)
        file.flush()
        restored = read(file.fileno())
    assert all(each.data_ptr() % ALIGNMENT == 0 for each in restored.values())
    assert restored["a"].equal(torch.arange(33.0)) and restored["b"].equal(torch.arange(LARGE + 1.0))


@pytest.mark.parametrize("size", [LARGE, LARGE + 1, 2**20 + 3])
def test_large_tensors_are_not_copied_when_they_are_read(size: int) -> None:
    fd, length = write({"first": torch.ones(size), "second": torch.ones(size, dtype=torch.uint8)})
    area = mmap.mmap(fd, length, access=mmap.ACCESS_COPY)
    begin = torch.frombuffer(area, dtype=torch.uint8).data_ptr()
    assert all(begin <= each.data_ptr() < begin + length for each in unpack(area).values())


def test_padding_is_no_part_of_the_weights() -> None:
    model = {"a": torch.ones(LARGE + 1), "b": torch.ones(LARGE + 3, dtype=torch.uint8), "c": torch.ones(3)}
    image = image_of({"trainer": model})
    assert load(image).keys() > {f"trainer.{name}" for name in model}, "there is padding"
    assert load(export_weights(image)).keys() == model.keys()
    assert load(b"".join(weight_parts(image)))["a"].equal(model["a"])


def test_lbfgs_resumes_bit_for_bit() -> None:
    """A model of 33 parameters: a dot product of as many numbers depends on where they lie."""
    torch.manual_seed(3)
    x, y = torch.randn(32, 6), torch.randn(32, 1)

    def build() -> tuple[nn.Module, torch.optim.LBFGS]:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
        return model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)

    def train(model: nn.Module, optimizer: torch.optim.LBFGS, steps: int) -> None:
        def loss() -> Tensor:
            optimizer.zero_grad()
            value = nn.functional.mse_loss(model(x), y)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        for _ in range(steps):
            optimizer.step(loss)  # type: ignore[arg-type]

    for begin in range(1, 8):
        whole, resumed = build(), build()
        train(*whole, begin)
        fd, _ = write({"model": whole[0].state_dict(), "optimizer": whole[1].state_dict()})
        saved = read(fd)
        resumed[0].load_state_dict(saved["model"])
        resumed[1].load_state_dict(saved["optimizer"])
        train(*whole, 6)
        train(*resumed, 6)
        for one, other in zip(whole[0].parameters(), resumed[0].parameters(), strict=True):
            assert torch.equal(one, other)
