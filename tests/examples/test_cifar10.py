"""The CIFAR-10 example reads the real format, reports errors of a folder, and augments with its generator only."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import load
from torch import Generator

EXAMPLE = Path(__file__).parents[2] / "examples/cifar10/trainer.py"


@cache
def trainer() -> Any:
    """The first test loads it, since torchvision takes two seconds to import."""
    return load(str(EXAMPLE), "Cifar10")


def module(name: str) -> Any:
    return trainer().__init__.__globals__[name]


def seeded_generator() -> Generator:
    return Generator().manual_seed(0)


def write(folder: Path, number: int, labels: list[int]) -> None:
    """Images of one colour each: red is the label, green the file, blue the index in it."""
    records = [bytes([label]) + bytes([label] * 1024 + [number] * 1024 + [i] * 1024) for i, label in enumerate(labels)]
    (folder / f"data_batch_{number}.bin").write_bytes(b"".join(records))


def test_reads_the_binary_format(tmp_path: Path) -> None:
    for number in range(1, 6):
        write(tmp_path, number, [number, 9 - number])
    train, valid = module("cifar10")(tmp_path)
    images, labels = train.tensors
    assert images.shape == (9, 3, 32, 32) and images.dtype == torch.uint8
    assert labels.tolist() == [1, 8, 2, 7, 3, 6, 4, 5, 5]
    assert (images[:, 0] == labels[:, None, None]).all()
    assert images[:, 1, 0, 0].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert valid.tensors[0][:, 2, 31, 31].tolist() == [1] and valid.tensors[1].tolist() == [4]


def test_a_missing_folder_is_named_with_a_right_one(tmp_path: Path) -> None:
    write(tmp_path, 2, [0])
    with pytest.raises(FileNotFoundError) as caught:
        trainer()(seed=0, device="cpu", data=str(tmp_path))
    message = str(caught.value)
    assert str(tmp_path) in message and "cifar-10-binary.tar.gz" in message and "`data`" in message
    assert "data_batch_1.bin" in message and "data_batch_2.bin" not in message


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3074)])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(content)
    with pytest.raises(ValueError, match=r"data_batch_1\.bin has \d+ bytes"):
        module("read_records")(tmp_path / "data_batch_1.bin")


def test_an_unknown_model_or_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="resnet20, resnet56, mobilenetv2"):
        trainer()(seed=0, device="cpu", data=str(tmp_path), model="resnet57")
    for number in range(1, 6):
        write(tmp_path, number, [0, 1])
    built = trainer()(seed=0, device="cpu", data=str(tmp_path), model="resnet20")
    with pytest.raises(ValueError, match="adam, sgd, momentum"):
        built.setup({"lr": 0.1, "optimizer": "adamw"})


def test_plain_sgd_has_no_momentum(tmp_path: Path) -> None:
    for number in range(1, 6):
        write(tmp_path, number, [0, 1])
    built = trainer()(seed=0, device="cpu", data=str(tmp_path), model="resnet20")
    found = []
    for optimizer in ("sgd", "momentum"):
        built.setup({"lr": 0.1, "optimizer": optimizer, "momentum": 0.9})
        found.append(built.optimizer.param_groups[0]["momentum"])
    assert found == [0.0, 0.9]


def test_models_have_the_papers_sizes() -> None:
    sizes = {name: sum(p.numel() for p in make().parameters()) for name, make in module("MODELS").items()}
    assert sizes == {"resnet20": 269_722, "resnet56": 853_018, "mobilenetv2": 2_236_682}


def test_crops_lie_in_the_padded_image() -> None:
    images = torch.arange(1, 1 + 3 * 32 * 32).view(1, 3, 32, 32).repeat(50, 1, 1, 1)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    windows = padded[0].unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)  # [81, 3, 32, 32]
    cropped = module("crop")(images, seeded_generator())
    found = {next(n for n, window in enumerate(windows) if torch.equal(window, crop)) for crop in cropped}
    assert len(found) > 20  # of 81


def test_flips_about_half() -> None:
    images = torch.rand(200, 3, 32, 32)
    flipped = module("flip")(images, seeded_generator())
    same = (flipped == images).flatten(1).all(1)
    assert torch.equal(flipped[~same], images[~same].flip(3))
    assert 70 < same.sum() < 130


@pytest.mark.parametrize("size", [1, 16, 20])
def test_cutout_blanks_a_square_clipped_at_the_border(size: int) -> None:
    images = torch.zeros(200, 3, 32, 32)
    blank = module("cut_out")(images, size, torch.ones(3, 1, 1), seeded_generator())
    assert torch.equal(blank[:, 0], blank[:, 2])
    rows, columns = blank[:, 0].amax(2).sum(1), blank[:, 0].amax(1).sum(1)
    assert torch.equal(blank[:, 0].sum((1, 2)), rows * columns)
    assert rows.max() == size and rows.min() >= size // 2
