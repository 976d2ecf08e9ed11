"""CIFAR-10 with the residual networks of He et al. and MobileNetV2: the image studies of the Hippo paper.

All images stay on the device as bytes, and a whole batch is cropped, flipped and cut out there at once. Every random
number for that comes from the generator of the batch's place in the data, so a resumed run augments alike.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import TensorDataset
from torchvision.models import MobileNetV2

from stagetree import TorchTrainer

MEAN = torch.tensor([125.3, 123.0, 113.9]).view(3, 1, 1)  # over the training images, as bytes
STD = torch.tensor([63.0, 62.1, 66.7]).view(3, 1, 1)


class Cifar10(TorchTrainer):
    """Hyper-parameters: `lr`, `weight_decay`, `bs`, `cutout`, `momentum` and `optimizer`. A step is an epoch.

    The optimizer is `adam`, `momentum` (SGD with momentum, and the default) or `sgd` (without).

    Shapes in the comments: B images of 3 colours, 32 x 32 pixels.
    """

    name = "cifar10"

    def __init__(self, *, seed: int, device: str, data: str, model: str = "resnet56") -> None:
        if model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}, not {model!r}")
        train, valid = cifar10(Path(data).expanduser())
        super().__init__(seed=seed, device=device, model=MODELS[model](), train_data=train, valid_data=valid)
        self.mean, self.std = MEAN.to(device), STD.to(device)
        self.cutout = 0

    def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
        kinds: dict[str, Callable[..., Optimizer]] = {"adam": Adam, "sgd": SGD, "momentum": SGD}
        kind = hp.get("optimizer", "momentum")
        if kind not in kinds:
            raise ValueError(f"optimizer must be one of {', '.join(kinds)}, not {kind!r}")
        return kinds[kind](self.model.parameters(), lr=hp["lr"])

    def apply(self, name: str, value: Any) -> None:
        if name == "cutout":
            self.cutout = value
        elif name == "momentum" and self.hp.get("optimizer") == "sgd":
            pass  # plain SGD has none
        else:
            super().apply(name, value)

    def transform_batch(self, batch: list[Tensor], generator: Generator) -> list[Tensor]:
        images, labels = batch
        images = flip(crop(images, generator), generator)
        return [cut_out(images, self.cutout, self.mean, generator) if self.cutout else images, labels]

    def scores(self, images: Tensor) -> Tensor:
        return self.model((images - self.mean) / self.std)

    def loss(self, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        return cross_entropy(self.scores(images), labels)

    def measure(self, batch: list[Tensor]) -> dict[str, Tensor]:
        images, labels = batch
        scores = self.scores(images)
        right = scores.argmax(dim=1) == labels
        return {"val_accuracy": right.double().mean(), "val_loss": cross_entropy(scores, labels)}


# Data ---------------------------------------------------------------------------------------------------------------


def cifar10(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """The first nine tenths of the training images to train on, the rest to choose by.

    The test images are for a last measurement, once the search is over.
    """
    files = [folder / f"data_batch_{number}.bin" for number in range(1, 6)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"CIFAR-10 is not complete in {folder}: {', '.join(missing)} missing. Download and unpack "
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz, and let `data` in trainer_args be the folder "
            "cifar-10-batches-bin in it"
        )
    records = torch.from_numpy(np.concatenate([read_records(file) for file in files]))
    images, labels = records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()
    count = len(records) * 9 // 10
    return TensorDataset(images[:count], labels[:count]), TensorDataset(images[count:], labels[count:])


def read_records(file: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A record is the label in one byte, then 1,024 bytes of red, green and blue each, row by row."""
    content = np.fromfile(file, dtype=np.uint8)
    if len(content) == 0 or len(content) % 3073:
        raise ValueError(f"{file} has {len(content)} bytes, not a whole number of records of 3,073: download it again")
    return content.reshape(-1, 3073)


def crop(images: Tensor, generator: Generator) -> Tensor:
    """32 x 32 pixels from anywhere in the image with four black ones around it."""
    corners = torch.randint(9, (len(images), 2, 1), generator=generator).to(images.device)
    rows, columns = (corners + torch.arange(32, device=images.device)).unbind(1)  # each [B, 32]
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    cropped = pad(images, (4, 4, 4, 4))[batch, :, rows[:, :, None], columns[:, None, :]]  # [B, 32, 32, 3]
    return cropped.permute(0, 3, 1, 2)


def flip(images: Tensor, generator: Generator) -> Tensor:
    """Every other image, by chance, as in a mirror."""
    flipped = torch.randint(2, (len(images), 1, 1, 1), generator=generator).bool().to(images.device)
    return torch.where(flipped, images.flip(3), images)


def cut_out(images: Tensor, size: int, filling: Tensor, generator: Generator) -> Tensor:
    """A square of `size` pixels around any pixel, as far as it lies in the image, is blanked (DeVries and Taylor)."""
    centres = torch.randint(32, (len(images), 2, 1), generator=generator).to(images.device)
    offsets = torch.arange(32, device=images.device) - (centres - size // 2)  # [B, 2, 32], from the square's corner
    rows, columns = ((offsets >= 0) & (offsets < size)).unbind(1)
    square = rows[:, None, :, None] & columns[:, None, None, :]  # [B, 1, 32, 32]
    return torch.where(square, filling, images)


# Models -------------------------------------------------------------------------------------------------------------


class ResNet(nn.Sequential):
    """The CIFAR network of He et al., section 4.2: 6n + 2 layers, three stages of 16, 32 and 64 features."""

    def __init__(self, n: int) -> None:
        widths = [16] * (n + 1) + [32] * n + [64] * n
        blocks = [Residual(inputs, outputs) for inputs, outputs in pairwise(widths)]
        first = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        super().__init__(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class Residual(nn.Module):
    """Two convolutions and a way around them, which has no parameters (option A): it skips pixels, and adds zeros."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = outputs // inputs
        self.added = outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        around = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return relu(around + self.norm2(self.conv2(relu(self.norm1(self.conv1(x))))))


def mobilenetv2() -> nn.Module:
    """torchvision's MobileNetV2, which halves 224 pixels five times, made to halve 32 pixels three times."""
    stages = [  # expansion, features, blocks, stride
        [1, 16, 1, 1],
        [6, 24, 2, 1],  # 2 for large images
        [6, 32, 3, 2],
        [6, 64, 4, 2],
        [6, 96, 3, 1],
        [6, 160, 3, 2],
        [6, 320, 1, 1],
    ]
    model: nn.Module = MobileNetV2(num_classes=10, inverted_residual_setting=stages)
    model.features[0][0].stride = (1, 1)  # 2 for large images
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet20": lambda: ResNet(3),
    "resnet56": lambda: ResNet(9),
    "mobilenetv2": mobilenetv2,
}
