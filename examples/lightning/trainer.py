"""A LightningModule and a LightningDataModule as their author wrote them, and the three lines that make them a trainer.

The module knows nothing of stagetree: it would train with Lightning's own Trainer as well.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningDataModule, LightningModule
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from stagetree.integrations.lightning import LightningTrainer


class Classifier(LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)
        self.net = nn.Sequential(*hidden, nn.Linear(width, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        scores = self.net(batch[0])
        self.log("val_loss", cross_entropy(scores, batch[1]))
        self.log("val_accuracy", (scores.argmax(dim=1) == batch[1]).double().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.001, weight_decay=0.01)


class Digits(LightningDataModule):
    def setup(self, stage: str) -> None:
        data = load_digits()
        images, labels = torch.tensor(data.images / 16, dtype=torch.float32).flatten(1), torch.tensor(data.target)
        train, valid = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=data.target)
        self.train = TensorDataset(images[train], labels[train])
        self.valid = TensorDataset(images[valid], labels[valid])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=32, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.valid, batch_size=100)


class LightningDigits(LightningTrainer):
    """Hyper-parameters: `lr`, `weight_decay`, `bs`. A step is an epoch."""

    name = "lightning-digits"

    def __init__(self, *, seed: int, device: str, width: int = 64) -> None:
        super().__init__(seed=seed, device=device, module=Classifier(width), datamodule=Digits())
