from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.embedded.machine import default_device, default_slots, slot_names
from app.workers.slot import device as module
from app.workers.slot.device import CPU, NoDevice, SlotDevice, device_of, gpus_of, visible_gpus

LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5b)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7f7)
  MIG 3g.20gb     Device  1: (UUID: MIG-1a2b)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-77aa)
"""


@pytest.mark.parametrize("slot", ["gpu1", "host-gpu1", "a.b-gpu1"])
def test_a_slot_sees_its_gpu_alone_and_calls_it_the_first(slot: str) -> None:
    assert device_of(slot, ["0", "3"], allow_cpu=False) == SlotDevice("cuda:0", "3")


def test_a_slot_of_the_cpu_sees_no_gpu() -> None:
    for slot in ("cpu0", "host-cpu3", "laptop"):
        assert device_of(slot, ["0"], allow_cpu=False) == CPU
    assert CPU.visible == ""


def test_a_slot_without_its_gpu_refuses_and_says_what_to_do() -> None:
    with pytest.raises(NoDevice, match=r"gpu0 has no GPU: none can be seen.*cpu0.*STAGETREE_ALLOW_CPU=1"):
        device_of("gpu0", [], allow_cpu=False)
    with pytest.raises(NoDevice, match="only 1 can be seen"):
        device_of("gpu1", ["0"], allow_cpu=False)
    assert device_of("gpu0", [], allow_cpu=True) == CPU


@pytest.mark.parametrize(
    ("given", "seen"),
    [("0,2", ["0", "2"]), ("-1", []), ("", []), ("1,-1,2", ["1"]), ("MIG-c7f7, GPU-77aa", ["MIG-c7f7", "GPU-77aa"])],
)
def test_only_what_the_environment_lets_cuda_see_is_there(given: str, seen: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": given}) == seen


def test_a_gpu_that_is_divided_is_its_parts() -> None:
    assert gpus_of(LISTING) == ["MIG-c7f7", "MIG-1a2b", "1"]


def nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which that is what `nvidia-smi` does."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_without_a_word_in_the_environment_the_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listing").write_text(LISTING)
    nvidia_smi(tmp_path, f"cat {tmp_path / 'listing'}", monkeypatch)
    assert visible_gpus({}) == ["MIG-c7f7", "MIG-1a2b", "1"]


def test_a_stack_has_a_slot_for_each_gpu_that_may_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listing").write_text(LISTING)
    nvidia_smi(tmp_path, f"cat {tmp_path / 'listing'}", monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (default_slots(), slot_names(2), default_device()) == (3, ["gpu0", "gpu1"], "cuda:0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert (slot_names(2), default_device()) == (["cpu0", "cpu1"], "cpu")
    assert default_slots() == len(os.sched_getaffinity(0))


def test_a_driver_that_does_not_answer_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NVIDIA_SMI_SECONDS", 0.2)
    nvidia_smi(tmp_path, "exec sleep 60", monkeypatch)
    assert visible_gpus({}) == []


def test_where_the_driver_cannot_be_asked_its_devices_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    devices = [path for path in Path("/dev").iterdir() if path.name.removeprefix("nvidia").isdigit()]
    assert visible_gpus({}) == [str(number) for number, _ in enumerate(devices)]


def test_an_entry_that_is_empty_hides_what_comes_behind_it() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,,2"}) == ["0"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "NoDevFiles,1"}) == []


def test_a_part_of_no_gpu_is_none() -> None:
    assert gpus_of("  MIG 3g.20gb     Device  0: (UUID: MIG-c7f7)\nGPU 0: A100\nsomething else\n") == ["0"]
