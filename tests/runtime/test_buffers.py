"""Memory for checkpoints is used again, and never while a reader may use its content."""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from app.workers.state import State
from stagetree.runtime.checkpoints import buffers, state_format
from stagetree.runtime.checkpoints.buffers import Buffers


def save_state(pool: Buffers, value: float, given_back: list[int]) -> State:
    """A state of these numbers, as a process that trains hands it on."""
    layout = state_format.Layout.plan({"weights": torch.full((1000,), value)})
    buffer = pool.take(layout.size)
    layout.fill(buffer.area)
    return State(os.dup(buffer.fd), layout.size, lambda is_lent: is_lent or given_back.append(buffer.number))


def value_of(state: State) -> float:
    return float(state_format.unpack(bytes(state.view()))["weights"].unique())


def test_returned_memory_is_reused() -> None:
    pool, given_back = Buffers("cpu"), list[int]()
    first = save_state(pool, 1.0, given_back)
    inode = os.fstat(first.fd).st_ino
    first.close()
    assert given_back == [0]
    pool.give_back(given_back)
    second = save_state(pool, 2.0, given_back)
    assert os.fstat(second.fd).st_ino == inode and value_of(second) == 2.0


class Copies(TorchDispatchMode):
    """Counts the bytes that copies write, and of tensors that are made beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.written = self.made = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default:
            self.written += args[0].nbytes
        elif isinstance(found, torch.Tensor) and func is torch.ops.aten.clone.default:
            self.made += found.nbytes
        return found


def test_training_waits_only_for_one_copy_of_each_tensor() -> None:
    """Also of one that does not lie in one piece. What follows, hash and store, is beside it."""
    state = {"a": torch.rand(300, 7), "b": [torch.rand(50, 40).t(), torch.arange(5, dtype=torch.int8)], "c": 1}
    pool = Buffers("cpu")
    with Copies() as copies:
        layout = state_format.Layout.plan(state)
        layout.fill(pool.take(layout.size).area)
    assert (copies.written, copies.made) == (300 * 7 * 4 + 50 * 40 * 4 + 5, 0)


def test_a_state_in_use_is_not_overwritten() -> None:
    pool, given_back = Buffers("cpu"), list[int]()
    first = save_state(pool, 1.0, given_back)
    kept = first.copy()
    first.close()
    first.close()
    assert not given_back
    second = save_state(pool, 2.0, given_back)
    assert (value_of(kept), value_of(second)) == (1.0, 2.0)
    kept.close()
    assert given_back == [0]


def test_memory_that_a_model_was_loaded_from_is_never_reused() -> None:
    """Its tensors may lie in there still: a trainer may keep what `load_state_dict` was given."""
    pool, given_back = Buffers("cpu"), list[int]()
    state = save_state(pool, 1.0, given_back)
    copy = state.copy()
    copy.lend()
    weights = state_format.unpack(mmap.mmap(copy.fd, 0, access=mmap.ACCESS_COPY))["weights"]
    copy.close()
    state.close()
    pool.give_back(given_back)
    save_state(pool, 2.0, given_back)
    assert weights.unique() == 1.0 and not given_back


def test_another_size_takes_other_memory_and_little_is_idle() -> None:
    pool = Buffers("cpu")
    sizes = [buffers.SIZE_STEP * number for number in (1, 2, 8, 40)]
    taken = [pool.take(size) for size in sizes]
    pool.give_back(buffer.number for buffer in taken)
    assert len(pool.free) == buffers.MAX_FREE
    again = pool.take(sizes[-1] - 5)
    assert again is taken[-1]
    assert pool.take(1) not in taken  # eight times too large is too much
    pool.forget()
    pool.give_back([again.number])
    assert not pool.free
