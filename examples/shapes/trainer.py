"""Pictures in files, read and augmented by other processes: circles, squares and triangles as JPEG.

The folder is laid out as torchvision's `ImageFolder` wants it, with a sub-folder for each class. Where none is named,
the pictures are drawn first, the same ones each time. A folder that a study names is only read: the author of a study
must not choose where this machine writes.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from stagetree import TorchTrainer

CLASSES = ("circle", "square", "triangle")
PIXELS = 64
DRAWN = Path("~/.cache/stagetree/shapes")


class Shapes(TorchTrainer):
    """Hyper-parameters: `lr`, `momentum`, `weight_decay`, `bs`. A step is a quarter of an epoch.

    The moving average of the weights is evaluated and exported.
    """

    name = "shapes"

    def __init__(self, *, seed: int, device: str, data: str = "", width: int = 16, num_workers: int = 0) -> None:
        folder = Path(data).expanduser() if data else drawn(DRAWN.expanduser())
        super().__init__(
            seed=seed,
            device=device,
            model=net(width),
            train_data=ImageFolder(folder / "train", augmented()),
            valid_data=ImageFolder(folder / "valid", plain()),
            steps_per_epoch=4,
            drop_last=True,
            eval_batch_size=100,
            clip_grad_norm=1.0,
            average_decay=0.9,
            num_workers=num_workers,
        )

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=hp["lr"], nesterov=True, momentum=hp["momentum"])

    def loss(self, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        loss = cross_entropy(self.model(images), labels, label_smoothing=0.1)
        self.log("train_loss", loss)
        return loss

    def measure(self, batch: list[Tensor]) -> dict[str, Tensor]:
        images, labels = batch
        return {"val_accuracy": (self.model(images).argmax(dim=1) == labels).double().mean()}


def net(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 2 * width)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, len(CLASSES)))


# Data ---------------------------------------------------------------------------------------------------------------


def augmented() -> v2.Compose:
    """These draw from torch's global generator, which is each sample's own while it is read."""
    cropped = v2.RandomResizedCrop(48, scale=(0.6, 1.0), antialias=True)
    return v2.Compose([v2.ToImage(), cropped, v2.RandomHorizontalFlip(), v2.ColorJitter(0.3, 0.3), *as_numbers()])


def plain() -> v2.Compose:
    return v2.Compose([v2.ToImage(), v2.Resize((48, 48), antialias=True), *as_numbers()])


def as_numbers() -> list[v2.Transform]:
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]


def drawn(folder: Path, train: int = 80, valid: int = 20) -> Path:
    """The folder with pictures of each class, drawn if it is missing. It appears whole if several processes draw it."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        mine = Path(tempfile.mkdtemp(dir=folder.parent))
        chance = np.random.default_rng(0)
        for part, count in (("train", train), ("valid", valid)):
            for shape in CLASSES:
                (mine / part / shape).mkdir(parents=True)
                for number in range(count):
                    draw(shape, chance).save(mine / part / shape / f"{number:03}.jpg", quality=90)
        try:
            mine.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(mine)
    return folder


def draw(shape: str, chance: np.random.Generator) -> Image.Image:
    """One shape of any colour, place and size, on noise."""
    image = Image.fromarray(chance.integers(256, size=(PIXELS, PIXELS, 3), dtype=np.uint8))
    size = int(chance.integers(20, 44))
    left, top = (int(each) for each in chance.integers(PIXELS - size, size=2))
    colour = tuple(int(each) for each in chance.integers(256, size=3))
    pen, box = ImageDraw.Draw(image), (left, top, left + size, top + size)
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.polygon([(left, top + size), (left + size, top + size), (left + size // 2, top)], fill=colour)
    return image
