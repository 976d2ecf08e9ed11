"""On a GPU, too, a lane of a pack has the same bits at any position and beside any neighbours."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_trainers import TRAINERS

from stagetree.packing.recordings import enable_recording
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.machine import set_determinism
from stagetree.runtime.model import HpTimeline, Model
from stagetree.runtime.packed import PackedModels

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")]

DIGITS = Path(__file__).parents[2] / "examples/digits/trainer.py"
WIDTH, STEPS = 4, 3
MINE = {"lr": 0.003, "bs": 16}
KINDS = ["convolving", "attention", "encoding", "by-own-code", "by-lion", "quantised"]


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """As in a process that trains."""
    set_determinism("strict")
    yield
    set_determinism("off")


@pytest.fixture
def enabled_recording() -> Iterator[None]:
    enable_recording(True)
    yield
    enable_recording(False)


def train_pack(
    pack: PackedModels, hps: dict[int, dict[str, Any]], name: str, how: dict[str, Any], steps: int = STEPS
) -> None:
    if name == "quantised":
        pytest.importorskip("bitsandbytes")
    for number in hps:
        pack.add(number, Model.build(TRAINERS[name], {"batches_per_step": 2, **how}, 0, "cuda:0"))
    timelines = {number: HpTimeline(hp) for number, hp in hps.items()}
    for _ in range(steps):
        assert not pack.advance(timelines)


def parameters(model: Model) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.trainer.model.parameters()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", [{}, {"precision": "bf16"}], ids=str)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("place", "bs"), [*((place, 16) for place in range(WIDTH)), (3, 1), (3, 3)])
def test_a_lane_has_the_same_bits_at_any_position(name: str, how: dict[str, Any], place: int, bs: int) -> None:
    mine = {**MINE, "bs": bs}
    by_itself, among_others = PackedModels(WIDTH), PackedModels(WIDTH)
    train_pack(by_itself, {0: mine}, name, how)
    hps = {number: {**mine, "lr": 1e3} for number in range(WIDTH)} | {place: mine}
    train_pack(among_others, hps, name, how)
    pairs = zip(parameters(by_itself[0]), parameters(among_others[place]), strict=True)
    assert all(one.equal(other) for one, other in pairs)
    assert not among_others.unpackable_reason


@pytest.mark.parametrize("bs", [32, 64, 128])
def test_tf32_rounding_does_not_count_as_another_loss(bs: int) -> None:
    """On an H100, gradients of the example's network were 1.3 hundredths apart, and trials were trained one by one."""
    pack = PackedModels(2)
    pack.add(0, Model.build(load_trainer(DIGITS, "digits"), {}, 0, "cuda:0"))
    assert not pack.advance({0: HpTimeline({"lr": 0.1, "bs": bs, "momentum": 0.9, "weight_decay": 5e-4})})
    assert pack.unpackable_reason == ""


@pytest.mark.parametrize("name", ["convolving", "attention"])
def test_a_profile_has_the_time_and_memory_of_a_pack(name: str) -> None:
    pack = PackedModels(WIDTH)
    train_pack(pack, {0: MINE}, name, {})
    profile = pack.profile()
    assert profile is not None
    full = profile.packed[WIDTH]
    assert full.bytes > profile.alone.bytes > 0 and full.seconds > 0


def spread(count: int = WIDTH, **more: Any) -> dict[int, dict[str, Any]]:
    return {number: {"lr": 0.001 * (1 + number), "bs": 16, **more} for number in range(count)}


@pytest.mark.parametrize("how", [{}, {"precision": "bf16"}, {"micro_batch_size": 8}], ids=str)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("orders", [(), (1, 2, 1, 2)])
def test_a_recorded_pass_has_the_bits_of_a_computed_one(
    request: pytest.FixtureRequest, name: str, how: dict[str, Any], orders: tuple[int, ...]
) -> None:
    """Dropout included, also where each lane reads in an order of its own; and it is played, not computed."""
    hps = spread()
    for number, order in enumerate(orders):
        hps[number]["data_seed"] = order
    computed, played = PackedModels(WIDTH), PackedModels(WIDTH)
    train_pack(computed, hps, name, how, steps=9)
    request.getfixturevalue("enabled_recording")
    train_pack(played, hps, name, how, steps=8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert not played.advance({number: HpTimeline(hp) for number, hp in hps.items()})
    assert any("GraphLaunch" in each.key for each in profile.key_averages())
    for number in hps:
        pairs = zip(parameters(computed[number]), parameters(played[number]), strict=True)
        assert all(one.equal(other) for one, other in pairs)


def test_lanes_on_one_quantised_base_hold_it_once() -> None:
    pack = PackedModels(WIDTH)
    train_pack(pack, spread(), "quantised", {"precision": "bf16"})
    bases = [pack[number].trainer.model.mixed.base.weight for number in range(WIDTH)]  # type: ignore[attr-defined]
    assert len({each.data_ptr() for each in bases}) == 1
    assert len({each.quant_state.absmax.data_ptr() for each in bases}) == 1
    assert not pack.unpackable_reason


def room_of(sizes: list[int]) -> int:
    """Bytes for recorded passes over batches of these sizes, and for the pack itself."""
    pack = PackedModels(WIDTH)
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for bs in sizes:
        train_pack(pack, spread(bs=bs), "attention", {"length": 1025}, steps=4)
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() - before


@pytest.mark.usefixtures("enabled_recording")
def test_recordings_share_the_memory_that_passes_need() -> None:
    """On an H100, eight of them filled 61 GiB, and the ninth pass ran out of memory."""
    assert room_of([64, 32, 16]) < 1.3 * room_of([64])


@pytest.mark.usefixtures("enabled_recording")
def test_an_outdated_recording_is_dropped(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = PackedModels(WIDTH)
    train_pack(pack, spread(), "weighing", {}, steps=6)
    assert not caplog.text
    monkeypatch.setattr(TRAINERS["weighing"], "weight", [2.0])
    timelines = {number: HpTimeline(hp) for number, hp in spread().items()}
    for _ in range(8):
        assert not pack.advance(timelines)
    assert "it gave other numbers than the same pass computed anew" in caplog.text
