"""Every example is trained with a break and without, to the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import Case, check_resumes

EXAMPLES = Path(__file__).parents[2] / "examples"
WARMUP = {"family": "warmup", "steps": 2, "then": {"family": "multistep", "init": 0.1, "milestones": [1], "gamma": 0.1}}


def changing(*values: Any, at: list[int]) -> dict[str, Any]:
    return {"family": "values", "values": list(values), "milestones": at}


@pytest.mark.slow
def test_digits(tmp_path: Path) -> None:
    hp = {"lr": WARMUP, "bs": changing(64, 100, at=[2]), "momentum": changing(0.9, 0.7, at=[3]), "weight_decay": 1e-4}
    case = Case(str(EXAMPLES / "digits/trainer.py"), "Digits", {"width": 8}, hp, broken=2, steps=4)
    check_resumes(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "how"), [(1, {}), (3, {}), (3, {"precision": "bf16", "micro_batch_size": 16})])
def test_charlm(tmp_path: Path, broken: int, how: dict[str, Any]) -> None:
    # Seven batches a step are far from an epoch, and the batch size changes on the way.
    args = {"layers": 2, "width": 16, "heads": 2, "context": 32, "batches_per_step": 7, **how}
    lr = {"family": "wsd", "peak": 0.01, "warmup": 1, "stable_until": 3, "decay": 3, "shape": "cosine"}
    hp = {"lr": lr, "bs": changing(32, 50, at=[3]), "weight_decay": changing(0.1, 0.0, at=[2])}
    case = Case(str(EXAMPLES / "charlm/trainer.py"), "CharLM", args, hp, broken=broken, steps=5, seed=3)
    check_resumes(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet20", "mobilenetv2"])
def test_cifar10(tmp_path: Path, model: str) -> None:
    write_cifar10(tmp_path, images=4)
    hp = {
        "lr": WARMUP,
        "bs": changing(6, 10, at=[2]),
        "cutout": changing(0, 16, 20, at=[1, 2]),
        "momentum": changing(0.7, 0.9, at=[2]),
        "optimizer": changing("momentum", "adam", at=[2]),
        "weight_decay": 1e-4,
    }
    args = {"data": str(tmp_path), "model": model}
    case = Case(str(EXAMPLES / "cifar10/trainer.py"), "Cifar10", args, hp, broken=2, steps=3)
    check_resumes(case, tmp_path)


def write_cifar10(folder: Path, images: int) -> None:
    """Noise in the format of the real files."""
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 6):
        records = torch.randint(256, (images, 3073), generator=generator, dtype=torch.uint8)
        records[:, 0] %= 10
        records.numpy().tofile(folder / f"data_batch_{number}.bin")
