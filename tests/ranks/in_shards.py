"""Digits with all usual causes of inexact training on several devices: BatchNorm, dropout, AdamW, clipping, uneven
batches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer


class Net(nn.Module):
    """dropout: of both dropouts. norm: `batch`, `layer` or `sync`."""

    def __init__(self, width: int, dropout: float, norm: str) -> None:
        super().__init__()
        kinds: dict[str, Any] = {"batch": nn.BatchNorm2d(width), "layer": nn.GroupNorm(1, width)}
        self.conv, self.norm = nn.Conv2d(1, width, 3, padding=1), kinds.get(norm) or nn.SyncBatchNorm(width)
        self.dropout, self.hidden, self.out = nn.Dropout(dropout), nn.Linear(width * 64, 16), nn.Linear(16, 10)
        self.unused = nn.Linear(3, 3)
        self.mask: Tensor
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))

    def forward(self, images: Tensor, is_loud: bool = False) -> Tensor:
        hidden = self.dropout(torch.relu(self.norm(self.conv(images))))
        hidden = self.dropout(torch.relu(self.hidden(hidden.flatten(1))))
        if not is_loud:
            return self.out(hidden)
        bias = self.out.bias * 1.0
        bias.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([0]), float("inf")))
        return linear(hidden, self.out.weight, bias)


class InShards(TorchTrainer):
    """counts: whether the loss is given as (sum, count). samples: of the training data. hungry: for memory.
    loud_at: where in an epoch a batch begins that has one gradient of infinite size, which one rank has."""

    name = "in_shards"

    def __init__(
        self,
        *,
        seed: int,
        device: str,
        samples: int = 403,
        width: int = 4,
        dropout: float = 0.2,
        norm: str = "batch",
        counts: bool = False,
        clip: float | None = 0.5,
        hungry: bool = False,
        loud_at: int | None = None,
        **more: Any,
    ) -> None:
        from sklearn.datasets import load_digits  # tests that only name this trainer do without

        images, labels = load_digits(return_X_y=True)
        images, labels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
        train, valid = (TensorDataset(images[part], labels[part]) for part in (slice(samples), slice(1500, 1600)))
        settings: dict[str, Any] = {"batches_per_step": 1, "clip_grad_norm": clip, "eval_batch_size": 33, **more}
        model = Net(width, dropout, norm)
        super().__init__(seed=seed, device=device, model=model, train_data=train, valid_data=valid, **settings)
        self._counts, self._hungry, self._loud_at = counts, hungry, loud_at

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=hp["lr"])

    def transform_batch(self, batch: Any, generator: torch.Generator) -> Any:
        images, labels = batch
        return [images + 0.01 * torch.rand(images.shape, generator=generator).to(images.device), labels]

    def loss(self, batch: Any) -> Any:
        images, labels = batch
        if self._hungry:
            raise torch.OutOfMemoryError("CUDA out of memory")
        outputs = self.model(images, is_loud=self.offset == self._loud_at)
        if self._counts:
            return cross_entropy(outputs, labels, reduction="sum"), len(labels)
        return cross_entropy(outputs, labels)

    def measure(self, batch: Any) -> Any:
        images, labels = batch
        outputs = self.model(images)
        right = (outputs.argmax(1) == labels).sum()
        return {"val_loss": cross_entropy(outputs, labels), "val_accuracy": (right, len(labels))}
