"""Ranks on two GPUs, through NCCL: the bits of one."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from app.workers.slot.device import visible_gpus
from app.workers.trainer_connection import Deadline
from app.workers.trainer_group import TrainerGroup
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import TrainerSettings, Warm
from stagetree.runtime.checkpoints.weight_files import join_parts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs here")]

FILE = str(Path(__file__).parents[1] / "ranks" / "in_shards.py")
PATIENCE = Deadline(120.0)
HP = {"lr": 0.01, "bs": {"family": "values", "values": [64, 96], "milestones": [7]}}


@pytest.mark.parametrize("args", [{}, {"precision": "bf16"}, {"precision": "fp16"}, {"parallel": "fsdp"}])
def test_two_gpus_have_the_bits_of_one(warm: Warm, args: dict[str, Any]) -> None:
    gpus, found = visible_gpus(), []
    with TrainerProcess.start(warm, TrainerSettings("cuda:0", gpus[0])) as one:
        found.append(train(one, args))
    with TrainerGroup.start(warm, TrainerSettings("cuda:0", ",".join(gpus[:2])), ranks=2) as two:
        found.append(train(two, args))
    assert found[0] == found[1]


def train(process: TrainerProcess, args: dict[str, Any]) -> tuple[str, Any]:
    process.call(PATIENCE).build(file=FILE, name="in_shards", args=args, seed=0, shards=4)
    process.train(HP, 9, deadline=PATIENCE)
    with closing(process.save(deadline=PATIENCE)) as saved:
        whole = b"".join(join_parts([each.view() for each in saved.images]))
        return hashlib.sha256(whole).hexdigest(), process.call(PATIENCE).evaluate().metrics
