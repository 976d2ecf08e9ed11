"""A process that trains on a GPU, as slots start one: what it sees and saves, and what becomes of its accidents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from app.workers.deadline import Deadline
from app.workers.slot.device import device_of, visible_gpus
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm
from stagetree.runtime import state_format
from stagetree.runtime.buffers import Buffers
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.state_format import Layout

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")]

FILE = str(Path(__file__).with_name("gpu_trainers.py"))
PATIENCE = Deadline(120.0)
FINE = {"mood": "fine"}


@pytest.fixture
def process(warm: Warm) -> Iterator[TrainerProcess]:
    with started(warm) as process:
        yield process


def started(warm: Warm, size: int = 512) -> TrainerProcess:
    """On the first GPU, alone."""
    slot = device_of("gpu0", visible_gpus(), allow_cpu=False)
    process = TrainerProcess.start(warm, device=slot.device, visible_devices=slot.visible)
    process.build(FILE, "moody", {"size": size}, 0, deadline=PATIENCE)
    return process


# Devices --------------------------------------------------------------------------------------------------------------


def test_a_slot_sees_its_own_device_alone(process: TrainerProcess) -> None:
    found = process.evaluate(deadline=PATIENCE)
    assert (found["devices"], found["visible"]) == (1, 1)
    assert process.info["device_name"] == torch.cuda.get_device_name(0) and process.info["cuda"] == torch.version.cuda


def test_a_model_leaves_no_memory_to_the_next(process: TrainerProcess) -> None:
    found = set()
    for _ in range(4):
        process.build(FILE, "moody", {"size": 512}, 0, deadline=PATIENCE)
        process.train(FINE, 2, deadline=PATIENCE)
        found.add(process.evaluate(deadline=PATIENCE)["allocated"])
    assert len(found) == 1


# Copies ---------------------------------------------------------------------------------------------------------------


def test_a_state_is_copied_as_it_was_whatever_is_computed_before_and_after() -> None:
    """The side stream waits for what was asked for before, and what comes after does not reach the copy."""
    buffers, numbers = Buffers("cuda:0"), torch.ones(2048, 2048, device="cuda")
    for round_ in range(3):
        for _ in range(50):
            numbers = torch.tanh(numbers @ numbers / 1000 + round_)
        layout = Layout.of({"numbers": numbers, "part": numbers[:, ::2]})
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


def test_a_state_goes_on_in_another_process(warm: Warm, process: TrainerProcess) -> None:
    process.train(FINE, 3, deadline=PATIENCE)
    state = process.save(deadline=PATIENCE)
    process.train(FINE, 6, deadline=PATIENCE)
    with started(warm) as other:
        assert other.load(state, FINE, 3, deadline=PATIENCE) == ()
        other.train(FINE, 6, deadline=PATIENCE)
        assert other.evaluate(deadline=PATIENCE)["sum"] == process.evaluate(deadline=PATIENCE)["sum"]
    state.close()


# Accidents ------------------------------------------------------------------------------------------------------------


def test_memory_that_is_not_there_is_told_as_that_and_the_process_goes_on(process: TrainerProcess) -> None:
    with pytest.raises(TrainerFailed) as caught:
        process.train({"mood": "memory"}, 1, deadline=PATIENCE)
    assert caught.value.kind == "out_of_memory"
    process.build(FILE, "moody", {"size": 512}, 0, deadline=PATIENCE)
    assert process.train(FINE, 2, deadline=PATIENCE).step == 2


def test_a_broken_context_is_told_as_that_and_ends_with_its_process(warm: Warm, process: TrainerProcess) -> None:
    with pytest.raises(TrainerFailed) as caught:
        process.train({"mood": "assert"}, 1, deadline=PATIENCE)
        process.evaluate(deadline=PATIENCE)
    assert caught.value.kind == "device"
    with pytest.raises(TrainerFailed) as again:
        process.evaluate(deadline=PATIENCE)
    assert again.value.kind == "device"
    with started(warm) as fresh:
        assert fresh.train(FINE, 2, deadline=PATIENCE).step == 2
        assert fresh.evaluate(deadline=PATIENCE)["sum"] is not None
