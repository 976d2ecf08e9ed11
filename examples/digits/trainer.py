"""Handwritten digits: a small convolutional network on the 1,797 images that come with scikit-learn.

Nothing is downloaded, and an epoch takes a tenth of a second on one CPU core. A good first trainer to copy.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer


class Digits(TorchTrainer):
    """Hyper-parameters: `lr`, `momentum`, `weight_decay`, `bs`. A step is an epoch."""

    name = "digits"

    def __init__(self, *, seed: int, device: str, width: int = 32) -> None:
        train, valid = digits(seed)
        super().__init__(seed=seed, device=device, model=Net(width), train_data=train, valid_data=valid)

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        # `TorchTrainer` keeps these up to date from here on, together with momentum, weight decay and batch size.
        return torch.optim.SGD(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return cross_entropy(self.model(images), labels)

    def measure(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        images, labels = batch
        scores = self.model(images)
        right = scores.argmax(dim=1) == labels
        return {"val_accuracy": right.double().mean(), "val_loss": cross_entropy(scores, labels)}


class Net(nn.Sequential):
    """8 x 8 pixels in, ten scores out. Batch normalisation and dropout: its state is more than its weights."""

    def __init__(self, width: int) -> None:
        super().__init__(
            *convolution(1, width),
            *convolution(width, width, stride=2),  # 8 x 8 -> 4 x 4
            *convolution(width, 2 * width),
            nn.MaxPool2d(2),  # 4 x 4 -> 2 x 2
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8 * width, 10),
        )


def convolution(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


def digits(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Four fifths of the images to train on, one fifth to measure on; the seed decides which."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)  # [1797, 1, 8, 8], from 0 to 1
    labels = torch.tensor(data.target)
    train, valid = train_test_split(range(len(labels)), test_size=0.2, random_state=seed, stratify=data.target)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[valid], labels[valid])
