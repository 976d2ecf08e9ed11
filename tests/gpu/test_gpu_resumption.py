"""On a GPU, `strict`: interrupted training ends with the bits of uninterrupted training. For any torch of the range."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_trainers import LENGTHS, make_trainer

from stagetree.trainer.base import MetricSums

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")]

FILE = Path(__file__).with_name("gpu_trainers.py")
LORA = Path(__file__).parents[2] / "examples/lora/trainer.py"
HP = {"lr": {"family": "values", "values": [0.01, 0.003], "milestones": [3]}, "bs": 16}


def run_check(folder: Path, name: str, args: dict[str, Any], file: Path = FILE, **more: Any) -> dict[str, Any]:
    """The report of `stagetree check` for a trainer on the first GPU."""
    job = {"file": str(file), "name": name, "args": args, "seed": 0, "hp": HP, "device": "cuda:0", **more}
    command = [sys.executable, "-P", "-m", "stagetree.runtime.check", str(folder / "report")]
    subprocess.run(command, input=json.dumps(job), text=True, check=True)
    report: dict[str, Any] = json.loads((folder / "report").read_text())
    return report


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("convolving", {}),
        ("convolving", {"precision": "bf16"}),
        ("convolving", {"precision": "fp16", "average_decay": 0.9, "clip_grad_norm": 1.0}),
        ("attention", {}),
        ("attention", {"precision": "bf16", "micro_batch_size": 8}),
        ("reading", {"num_workers": 2}),
    ],
)
def test_a_break_changes_nothing(tmp_path: Path, name: str, args: dict[str, Any]) -> None:
    report = run_check(tmp_path, name, args)
    assert (report["failed"], report["differences"], report["not_exact"]) == ("", {}, [])


@pytest.mark.parametrize("length", LENGTHS)
def test_attention_of_any_length_is_the_same_twice(tmp_path: Path, length: int) -> None:
    """Long sequences are divided among blocks of the GPU, whose sums have any order without the strict mode."""
    report = run_check(tmp_path, "attention", {"length": length, "precision": "bf16"}, steps=2, broken=1)
    assert (report["failed"], report["differences"]) == ("", {})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapters_of_low_rank(tmp_path: Path, precision: str) -> None:
    report = run_check(tmp_path, "lora", {"precision": precision}, LORA)
    assert (report["failed"], report["differences"], report["not_exact"]) == ("", {}, [])


def test_an_operation_without_a_deterministic_form_is_refused_by_name(tmp_path: Path) -> None:
    assert "does not have a deterministic implementation" in run_check(tmp_path, "undetermined", {})["failed"]
    report = run_check(tmp_path, "undetermined", {}, determinism="warn")
    assert report["failed"] == "" and any("adaptive_max_pool2d" in name for name in report["not_exact"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["convolving", "attention"])
def test_a_step_does_not_wait_for_the_device(name: str, precision: str) -> None:
    """It gets work while it computes; a wait after each batch leaves it idle before the next."""
    trainer = make_trainer(name, seed=0, device="cuda:0", precision=precision, clip_grad_norm=1.0, batches_per_step=3)
    trainer.setup({"lr": 0.01, "bs": 16})
    trainer.train()  # kernels are chosen, and memory is allocated
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.train()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_logging_a_value_does_not_wait_for_the_device() -> None:
    logged, value = MetricSums(), torch.ones((), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            logged.add("loss", value)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert logged.means() == {"loss": 1.0}
