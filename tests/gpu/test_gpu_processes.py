"""A GPU training process, started like a slot's: its devices, its saved states and its crashes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from app.workers.slot.device import device_of, visible_gpus
from app.workers.trainer_connection import Deadline
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import TrainerSettings, Warm
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.checkpoints.buffers import Buffers
from stagetree.runtime.checkpoints.state_format import Layout
from stagetree.runtime.failures import TrainerFailed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")]

FILE = str(Path(__file__).with_name("gpu_trainers.py"))
PATIENCE = Deadline(120.0)
FINE = {"mood": "fine"}


@pytest.fixture
def process(warm: Warm) -> Iterator[TrainerProcess]:
    with start_process(warm) as process:
        yield process


def start_process(warm: Warm, size: int = 512, name: str = "gpu0", shares: int = 1) -> TrainerProcess:
    """On the first GPU, alone, or as one of its shares."""
    slot = device_of(name, visible_gpus(), allow_cpu=False, shares=shares)
    process = TrainerProcess.start(warm, TrainerSettings(slot.device, slot.visible, slot.memory_fraction))
    process.call(PATIENCE).build(file=FILE, name="moody", args={"size": size}, seed=0)
    return process


# Devices --------------------------------------------------------------------------------------------------------------


def test_a_slot_sees_its_own_device_alone(process: TrainerProcess) -> None:
    found = process.call(PATIENCE).evaluate().metrics
    assert (found["devices"], found["visible"]) == (1, 1)


def test_a_model_leaves_no_memory_to_the_next(process: TrainerProcess) -> None:
    found = set()
    for _ in range(4):
        process.call(PATIENCE).build(file=FILE, name="moody", args={"size": 512}, seed=0)
        process.train(FINE, 2, deadline=PATIENCE)
        found.add(process.call(PATIENCE).evaluate().metrics["allocated"])
    assert len(found) == 1


def test_the_most_memory_is_that_of_the_model_since_it_was_built(process: TrainerProcess) -> None:
    """A larger one before it does not count."""
    peaks = dict[int, int]()
    for size in (4096, 512):
        process.call(PATIENCE).build(file=FILE, name="moody", args={"size": size}, seed=0)
        peaks[size] = process.train(FINE, 2, deadline=PATIENCE).peak_bytes
    for size, peak in peaks.items():
        assert 2 * 4 * size**2 <= peak < 4 * 4 * size**2 + 64 * 2**20  # cuBLAS takes some for itself


def test_slots_that_share_a_gpu_compute_the_same_bits_at_once(warm: Warm) -> None:
    shares = [start_process(warm, name=name, shares=2) for name in ("gpu0a", "gpu0b")]
    with start_process(warm) as alone, shares[0], shares[1], ThreadPoolExecutor() as both:
        list(both.map(lambda process: process.train(FINE, 200, deadline=PATIENCE), shares))
        alone.train(FINE, 200, deadline=PATIENCE)
        sums = {process.call(PATIENCE).evaluate().metrics["sum"] for process in (alone, *shares)}
    assert len(sums) == 1


def test_a_share_has_no_more_than_its_part_of_the_memory(warm: Warm) -> None:
    row = int((torch.cuda.get_device_properties(0).total_memory * 0.3 / 4) ** 0.5)  # 30 % of it, as single floats
    with start_process(warm, name="gpu0a", shares=2) as share:
        share.call(PATIENCE).build(file=FILE, name="moody", args={"size": row}, seed=0)
        with pytest.raises(TrainerFailed) as caught:
            share.train(FINE, 1, deadline=PATIENCE)  # a second one needs room
    assert caught.value.kind == "out_of_memory"


# Copies ---------------------------------------------------------------------------------------------------------------


def test_a_state_is_copied_as_it_was_whatever_is_computed_before_and_after() -> None:
    """The side stream waits for earlier work, and later work does not reach the copy."""
    buffers, numbers = Buffers("cuda:0"), torch.ones(2048, 2048, device="cuda")
    for round_ in range(3):
        for _ in range(50):
            numbers = torch.tanh(numbers @ numbers / 1000 + round_)
        layout = Layout.plan({"numbers": numbers, "part": numbers[:, ::2]})
        buffer = buffers.take(layout.size)
        assert buffer.is_pinned
        layout.fill(buffer.area)
        expected = numbers.clone()
        numbers.zero_()
        state = state_format.unpack(buffer.area)
        assert torch.equal(state["numbers"], expected.cpu()) and torch.equal(state["part"], expected[:, ::2].cpu())
        numbers = expected
        del state
        buffers.give_back([buffer.number])
    assert len(buffers.free) == 1  # the same memory each time
    buffers.forget()


def test_memory_is_pinned_again_after_it_was_let_go_of() -> None:
    for _ in range(3):
        buffers = Buffers("cuda:0")
        assert buffers.take(2**20).is_pinned
        buffers.forget()


def test_a_state_resumes_in_another_process(warm: Warm, process: TrainerProcess) -> None:
    process.train(FINE, 3, deadline=PATIENCE)
    state = process.save(deadline=PATIENCE)
    process.train(FINE, 6, deadline=PATIENCE)
    with start_process(warm) as other:
        assert other.call(PATIENCE).load(fds=state.lend(), hp=FINE, step=3) == []
        other.train(FINE, 6, deadline=PATIENCE)
        assert other.call(PATIENCE).evaluate().metrics["sum"] == process.call(PATIENCE).evaluate().metrics["sum"]
    state.close()


# Accidents ------------------------------------------------------------------------------------------------------------


def test_out_of_memory_is_reported_and_the_process_survives(process: TrainerProcess) -> None:
    with pytest.raises(TrainerFailed) as caught:
        process.train({"mood": "memory"}, 1, deadline=PATIENCE)
    assert caught.value.kind == "out_of_memory"
    process.call(PATIENCE).build(file=FILE, name="moody", args={"size": 512}, seed=0)
    assert process.train(FINE, 2, deadline=PATIENCE).step == 2


def test_a_broken_context_is_reported_and_ends_the_process(warm: Warm, process: TrainerProcess) -> None:
    with pytest.raises(TrainerFailed) as caught:
        process.train({"mood": "assert"}, 1, deadline=PATIENCE)
        process.call(PATIENCE).evaluate()
    assert caught.value.kind == "device"
    with pytest.raises(TrainerFailed) as again:
        process.call(PATIENCE).evaluate()
    assert again.value.kind == "device"
    with start_process(warm) as fresh:
        assert fresh.train(FINE, 2, deadline=PATIENCE).step == 2
        assert fresh.call(PATIENCE).evaluate().metrics["sum"] is not None
