"""A small MLP on the images of digits: about 9,000 parameters, of which a device notices little."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer


@cache
def digits() -> tuple[TensorDataset, TensorDataset]:
    """To train on and to measure on; read once in a process, for any number of models."""
    data = load_digits()
    images, labels = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    return TensorDataset(images[:1400], labels[:1400]), TensorDataset(images[1400:], labels[1400:])


class Mlp(TorchTrainer):
    """64 pixels, two hidden layers of 64, ten scores. Hyper-parameters: `lr`, `momentum`, `weight_decay`, `bs`."""

    name = "mlp"

    def __init__(self, *, seed: int, device: str, batches_per_step: int | None = None) -> None:
        train, valid = digits()
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        how: dict[str, Any] = {"train_data": train, "valid_data": valid, "batches_per_step": batches_per_step}
        super().__init__(seed=seed, device=device, model=model, **how)

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: list[Tensor]) -> Tensor:
        return cross_entropy(self.model(batch[0]), batch[1])

    def measure(self, batch: list[Tensor]) -> dict[str, Tensor]:
        scores = self.model(batch[0])
        right = scores.argmax(dim=1) == batch[1]
        return {"val_accuracy": right.double().mean(), "val_loss": cross_entropy(scores, batch[1])}
