from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.slots import shared_gpu
from app.embedded.machine import StackFailed, default_device, default_slots, slot_names
from app.workers.slot import device as module
from app.workers.slot.device import (
    CPU,
    NoDevice,
    SlotDevice,
    device_kind,
    device_of,
    gpus_of,
    mps_is_running,
    visible_gpus,
)

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


def test_a_slot_without_its_gpu_refuses_with_a_remedy() -> None:
    with pytest.raises(NoDevice, match=r"gpu0 has no GPU: none can be seen.*cpu0.*STAGETREE_ALLOW_CPU=1"):
        device_of("gpu0", [], allow_cpu=False)
    with pytest.raises(NoDevice, match="only 1 can be seen"):
        device_of("gpu1", ["0"], allow_cpu=False)
    assert device_of("gpu0", [], allow_cpu=True) == CPU


@pytest.mark.parametrize("slot", ["gpu1a", "host-gpu1b"])
def test_a_share_sees_its_gpu_alone_and_has_an_even_part_of_the_memory(slot: str) -> None:
    assert device_of(slot, ["0", "3"], allow_cpu=False, shares=2) == SlotDevice("cuda:0", "3", 2, 0.5)


def test_how_much_memory_a_slot_may_have_can_be_said() -> None:
    shares = [device_of(slot, ["0"], allow_cpu=False, shares=3, memory_fraction=0.25) for slot in ("gpu0", "gpu0c")]
    assert [(device.shares, device.memory_fraction) for device in shares] == [(1, 0.25), (3, 0.25)]


def test_a_share_that_nobody_said_there_is_does_not_take_all_the_memory() -> None:
    with pytest.raises(NoDevice, match=r"gpu0b is share b.*STAGETREE_SLOTS_PER_GPU=1 .*call the slot gpu0$"):
        device_of("gpu0b", ["0"], allow_cpu=False)


def test_a_slot_says_with_how_many_it_shares_its_gpu_and_how() -> None:
    devices = [SlotDevice("cuda:0", "3", *how) for how in ((1,), (2, 0.5, True), (2, 0.5, False))]
    assert str(CPU) == "the CPU"
    said = ["GPU 3", "GPU 3, shared by 2 through MPS", "GPU 3, shared by 2 in turns, without MPS"]
    assert list(map(str, devices)) == said


@pytest.mark.slow
@given(
    host=st.from_regex(r"([a-z0-9]+[-_.])?", fullmatch=True), number=st.integers(0, 300), letter=st.sampled_from("ab")
)
def test_slots_that_share_a_gpu_are_those_with_its_name_and_a_letter(host: str, number: int, letter: str) -> None:
    gpu = f"{host}gpu{number}"
    assert shared_gpu(gpu + letter) == gpu
    assert all(shared_gpu(slot) is None for slot in (gpu, f"{host}cpu{number}", f"{gpu}{letter}1", f"{gpu}A"))


def on_the_path(folder: Path, program: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which that is what a program does."""
    (folder / program).write_text(f"#!/bin/sh\n{script}\n")
    (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


@pytest.mark.parametrize(("script", "answers"), [('[ "$(cat)" = get_server_list ]', True), ("exit 1", False)])
def test_whether_kernels_of_several_processes_run_at_once_is_asked_of_the_daemon(
    script: str, answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_path(tmp_path, "nvidia-cuda-mps-control", script, monkeypatch)
    assert mps_is_running() is answers


def test_a_daemon_that_does_not_answer_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NVIDIA_SMI_SECONDS", 0.2)
    on_the_path(tmp_path, "nvidia-cuda-mps-control", "exec sleep 60", monkeypatch)
    assert not mps_is_running()


def test_without_the_program_no_daemon_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not mps_is_running()


@pytest.mark.parametrize(
    ("given", "seen"),
    [("0,2", ["0", "2"]), ("-1", []), ("", []), ("1,-1,2", ["1"]), ("MIG-c7f7, GPU-77aa", ["MIG-c7f7", "GPU-77aa"])],
)
def test_only_devices_visible_to_cuda_exist(given: str, seen: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": given}) == seen


def test_a_gpu_that_is_divided_is_its_parts() -> None:
    assert gpus_of(LISTING) == ["MIG-c7f7", "MIG-1a2b", "1"]


def test_without_a_word_in_the_environment_the_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listing").write_text(LISTING)
    on_the_path(tmp_path, "nvidia-smi", f"cat {tmp_path / 'listing'}", monkeypatch)
    assert visible_gpus({}) == ["MIG-c7f7", "MIG-1a2b", "1"]


def test_a_stack_has_a_slot_for_each_gpu_that_may_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "listing").write_text(LISTING)
    on_the_path(tmp_path, "nvidia-smi", f"cat {tmp_path / 'listing'}", monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (default_slots(), slot_names(2), default_device()) == (3, ["gpu0", "gpu1"], "cuda:0")
    assert (default_slots(2), slot_names(5, 2)) == (6, ["gpu0a", "gpu1a", "gpu2a", "gpu0b", "gpu1b"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert (slot_names(2), default_device()) == (["cpu0", "cpu1"], "cpu")
    assert default_slots() == len(os.sched_getaffinity(0))
    with pytest.raises(StackFailed, match="--slots-per-gpu divides GPUs, and none can be seen"):
        default_slots(2)


def test_a_driver_that_does_not_answer_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NVIDIA_SMI_SECONDS", 0.2)
    on_the_path(tmp_path, "nvidia-smi", "exec sleep 60", monkeypatch)
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


# ------------------------------------------------------------------------------------------- of which kind they are

RECORDED = """\
GPU 0: NVIDIA H200 (UUID: GPU-5f6a9d3e-0c5b-4c52-9b64-0d1d1f0b7a11)
GPU 1: NVIDIA H200 (UUID: GPU-a0c2f5d4-7c6b-4f3a-8f11-3a1f0c9d2b22)
GPU 2: NVIDIA A100-SXM4-80GB (UUID: GPU-77aa11bb-22cc-33dd-44ee-55ff66aa77bb)
  MIG 3g.40gb     Device  0: (UUID: MIG-0d3f2c1b-1111-5222-8333-444455556666)
  MIG 1g.10gb     Device  1: (UUID: MIG-9e8d7c6b-aaaa-5bbb-8ccc-ddddeeeeffff)
GPU 3: Tesla V100-SXM2-16GB (UUID: GPU-12ab34cd-56ef-78ab-90cd-12ef34ab56cd)
"""
"""Of `nvidia-smi -L`, as it is printed by drivers from 470 to 580, with and without parts of a GPU."""


@pytest.mark.parametrize(
    ("visible", "kind"),
    [
        ("0", "NVIDIA H200"),
        ("1", "NVIDIA H200"),
        ("GPU-a0c2f5d4-7c6b-4f3a-8f11-3a1f0c9d2b22", "NVIDIA H200"),
        ("3", "Tesla V100-SXM2-16GB"),
        ("MIG-0d3f2c1b-1111-5222-8333-444455556666", "NVIDIA A100-SXM4-80GB 3g.40gb"),
        ("MIG-9e8d7c6b-aaaa-5bbb-8ccc-ddddeeeeffff", "NVIDIA A100-SXM4-80GB 1g.10gb"),
        ("7", "GPU"),
    ],
)
def test_the_kind_of_a_gpu_is_its_model(
    visible: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listing").write_text(RECORDED)
    on_the_path(tmp_path, "nvidia-smi", f'[ "$*" = -L ] && cat {tmp_path / "listing"}', monkeypatch)
    assert device_kind(SlotDevice("cuda:0", visible)) == kind
    assert device_kind(SlotDevice("cuda:0", visible, 2, 0.5)) == f"{kind}, a share of 2"


@pytest.mark.parametrize(
    "script", ["echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "exit 9"]
)
def test_a_driver_that_fails_leaves_the_kind_open(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_path(tmp_path, "nvidia-smi", script, monkeypatch)
    assert device_kind(SlotDevice("cuda:0", "0")) == "GPU"
    assert device_kind(CPU) == "CPU"


def test_a_driver_that_hangs_or_is_not_there_leaves_the_kind_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NVIDIA_SMI_SECONDS", 0.2)
    on_the_path(tmp_path, "nvidia-smi", "exec sleep 60", monkeypatch)
    assert device_kind(SlotDevice("cuda:0", "0")) == "GPU"
    (tmp_path / "nvidia-smi").unlink()
    assert device_kind(SlotDevice("cuda:0", "0")) == "GPU"
