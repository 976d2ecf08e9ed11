"""On a GPU, too, a lane of a pack ends with the same bits in any place and whoever its neighbours are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu_trainers import TRAINERS

from stagetree.runtime.model import HpTimeline, Model
from stagetree.runtime.packed import PackedModels

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")]

WIDTH, STEPS = 4, 3
MINE = {"lr": 0.003, "bs": 16}


def trained(pack: PackedModels, hps: dict[int, dict[str, Any]], name: str, how: dict[str, Any]) -> None:
    for number in hps:
        pack.put(number, Model.build(TRAINERS[name], {"batches_per_step": 2, **how}, 0, "cuda:0"))
    timelines = {number: HpTimeline(hp) for number, hp in hps.items()}
    for _ in range(STEPS):
        assert not pack.advance(timelines)


def parameters(model: Model) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.trainer.model.parameters()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", [{}, {"precision": "bf16"}], ids=str)
@pytest.mark.parametrize("name", ["convolving", "attention"])
@pytest.mark.parametrize("place", range(WIDTH))
def test_a_lane_is_the_same_in_any_place(name: str, how: dict[str, Any], place: int) -> None:
    by_itself, among_others = PackedModels(WIDTH), PackedModels(WIDTH)
    trained(by_itself, {0: MINE}, name, how)
    hps = {number: {**MINE, "lr": 1e3} for number in range(WIDTH)} | {place: MINE}
    trained(among_others, hps, name, how)
    pairs = zip(parameters(by_itself[0]), parameters(among_others[place]), strict=True)
    assert all(one.equal(other) for one, other in pairs)


@pytest.mark.parametrize("name", ["convolving", "attention"])
def test_a_profile_says_what_a_pack_costs_in_time_and_memory(name: str) -> None:
    pack = PackedModels(WIDTH)
    trained(pack, {0: MINE}, name, {})
    profile = pack.profile()
    assert profile is not None
    full = profile.packed[WIDTH]
    assert full.bytes > profile.alone.bytes > 0 and full.seconds > 0
