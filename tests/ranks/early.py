"""Prints the state of a model after some batches, learned from by shards on one rank and on two, as hashes.

Between ranks, gradients go in buckets of a few bytes, during the last backward pass or after it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer
from stagetree.runtime.check import run_in_ranks
from stagetree.runtime.warm import import_before_forking
from stagetree.trainer.ranks import summing
from stagetree.trainer.ranks.group import here

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two shards a rank": {"shards": 4},
    "small passes": {"micro_batch_size": 2},
    "a layer that is used again, and again": {"again": True},
    "a layer that is used now and then": {"sometimes": True},
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.rare = nn.Linear(8, 8)


class Early(TorchTrainer):
    """again: each batch uses a layer once more, in backward passes of their own. sometimes: only some use another."""

    name = "early"

    def __init__(self, *, seed: int, device: str, again: bool = False, sometimes: bool = False, **more: Any) -> None:
        torch.manual_seed(0)
        x = torch.randn(64, 3)
        data, self._again, self._sometimes, self.sent = TensorDataset(x, x.sum(1, keepdim=True)), again, sometimes, 0
        settings: dict[str, Any] = {"batches_per_step": 1, "shards": 2, **more}
        super().__init__(seed=seed, device=device, model=Net(), train_data=data, valid_data=data, **settings)

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=hp["lr"])

    def after_step(self) -> None:
        self.sent += 1

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        hidden = torch.relu(self.model.first(x))
        if self._sometimes and self.sent % 3 == 1:
            hidden = hidden + self.model.rare(hidden)
        for _ in range(self.sent if self._again else 0):  # gradients from before the loss's own
            self.model.last(self.model.middle(hidden.detach())).mean().backward()
        return mse_loss(self.model.last(torch.relu(self.model.middle(hidden))), y)


def train_early(args: dict[str, Any], size: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    summing.EARLY_BYTES = {"cpu": size}
    begun, begin = list[int](), summing.Exchanges.begin

    def count_and_begin(self: summing.Exchanges, *how: Any) -> None:
        begun.append(len(how[0]))
        begin(self, *how)

    summing.Exchanges.begin = count_and_begin  # type: ignore[method-assign]
    trainer = Early(seed=0, device="cpu", **args)
    trainer.setup({"lr": 0.01, "bs": 10})
    for _ in range(8):
        trainer.train()
    bits = b"".join(each.detach().numpy().tobytes() for each in trainer.model.state_dict().values())
    return {"hash": hashlib.sha256(bits).hexdigest(), "exchanges": len(begun), "world": here().world}


def main() -> None:
    import_before_forking()  # an optimizer imports modules at its first use, too
    found = {}
    for name, args in CASES.items():
        ways = [(1, 0), (2, 0), (2, 1), (2, 200)]
        found[name] = [run_in_ranks(lambda: train_early(args, size), world, "cpu") for world, size in ways]  # noqa: B023
    print(json.dumps(found))


if __name__ == "__main__":
    main()
