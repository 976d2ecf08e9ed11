"""On a GPU, `strict`: what was broken off ends as what was not, to the bit. Runs on any torch of the range."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer
from stagetree.logged import Logged

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")]


class Convolving(TorchTrainer):
    name = "convolving"

    def __init__(self, *, seed: int, device: str, **how: Any) -> None:
        chance = torch.Generator().manual_seed(seed)
        data = TensorDataset(torch.randn(64, 3, 16, 16, generator=chance), torch.arange(64) % 10)
        layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.LazyLinear(10)
        model = nn.Sequential(*layers)
        model(data.tensors[0][:2])
        super().__init__(seed=seed, device=device, model=model, train_data=data, valid_data=data, **how)

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return AdamW(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: list[Tensor]) -> Tensor:
        return cross_entropy(self.model(batch[0]), batch[1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.mixed, self.scores = nn.Embedding(50, 64), nn.Linear(64, 192), nn.Linear(64, 50)

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.mixed(self.letters(ids)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind(0)
        dropout = 0.1 if self.training else 0.0
        found = scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.scores(found.transpose(1, 2).flatten(2))


class Attention(TorchTrainer):
    name = "attention"

    def __init__(self, *, seed: int, device: str, **how: Any) -> None:
        data = TensorDataset(torch.randint(50, (64, 129), generator=torch.Generator().manual_seed(seed)))
        super().__init__(seed=seed, device=device, model=Attending(), train_data=data, valid_data=data, **how)

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        return AdamW(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: list[Tensor]) -> Tensor:
        scores = self.model(batch[0][:, :-1])
        return cross_entropy(scores.flatten(0, 1), batch[0][:, 1:].flatten())


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("convolving", {}),
        ("convolving", {"precision": "fp16", "average_decay": 0.9}),
        ("attention", {}),
        ("attention", {"precision": "bf16", "micro_batch_size": 8}),
    ],
)
def test_a_break_changes_nothing(tmp_path: Path, name: str, args: dict[str, Any]) -> None:
    hp = {"lr": {"family": "values", "values": [0.01, 0.003], "milestones": [3]}, "bs": 16}
    job = {"file": __file__, "name": name, "args": args, "seed": 0, "hp": hp, "device": "cuda:0"}
    command = [sys.executable, "-P", "-m", "stagetree.runtime.check", str(tmp_path / "report")]
    subprocess.run(command, input=json.dumps(job), text=True, check=True)
    report = json.loads((tmp_path / "report").read_text())
    assert (report["failed"], report["differences"]) == ("", {})


def test_logging_a_value_does_not_wait_for_the_device() -> None:
    logged, value = Logged(), torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            logged.add("loss", value)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert logged.means() == {"loss": 1.0}
