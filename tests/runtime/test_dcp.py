"""Checkpoints of torch.distributed.checkpoint: read as they were written, and never a way to run code."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import run_in_fork
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from stagetree import load_weights
from stagetree.runtime.checkpoints.dcp import METADATA, NotDcp, PackedFolder
from stagetree.runtime.checkpoints.weight_files import kind_of


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2).to(torch.bfloat16))


def save(folder: Path, state: dict[str, Any]) -> Path:
    checkpoint.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def pack(folder: Path, to: Path) -> Path:
    to.write_bytes(b"".join(PackedFolder.from_folder(folder).parts()))
    return to


def assert_is_model(found: dict[str, Any], wanted: nn.Module | None = None) -> None:
    states = (wanted or model()).state_dict()
    assert found.keys() == states.keys()
    assert all(torch.equal(found[name], each) and found[name].dtype == each.dtype for name, each in states.items())


@pytest.mark.parametrize("wrapper", ["", "model", "state_dict"])
def test_the_model_is_read_by_its_own_names(tmp_path: Path, wrapper: str) -> None:
    state: dict[str, Any] = model().state_dict()
    if wrapper:
        state = {wrapper: state, "optim": {"exp_avg": torch.ones(3)}, "step": 39_000}
    folder = save(tmp_path / "dcp", state)
    assert_is_model(load_weights(folder))
    object = pack(folder, tmp_path / "object")
    with object.open("rb") as file:
        assert kind_of(file) == "dcp"
    assert object.stat().st_size == PackedFolder.from_folder(folder).size
    assert_is_model(load_weights(object))


def write_divided(folder: Path, rank: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = {"a": torch.arange(21.0).reshape(7, 3), "b": torch.arange(4)}
    state = {name: distribute_tensor(each, mesh, [Shard(0)]) for name, each in whole.items()}
    checkpoint.save({"model": {**state, "all": torch.ones(2)}}, checkpoint_id=folder / "dcp")
    dist.destroy_process_group()


@pytest.mark.slow
def test_parts_of_several_ranks_are_joined(tmp_path: Path) -> None:
    if (pid := os.fork()) == 0:
        write_divided(tmp_path, 1)
        os._exit(0)
    run_in_fork(write_divided, tmp_path, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 2
    found = load_weights(tmp_path / "dcp")
    assert found["a"].tolist() == torch.arange(21.0).reshape(7, 3).tolist()
    assert found["b"].tolist() == [0, 1, 2, 3] and found["all"].tolist() == [1.0, 1.0]


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize("evil", [Evil(), print, torch.load])
def test_a_pickle_that_names_anything_else_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evil: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save(tmp_path / "dcp", model().state_dict())
    (folder / METADATA).write_bytes(pickle.dumps(evil))
    with pytest.raises(NotDcp, match=re.escape(f"has a file {METADATA} that is not read: it names ")):
        load_weights(folder)
    assert not (tmp_path / "pwned").exists()


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotDcp, match=r"has no file \.metadata"):
        load_weights(tmp_path)
    folder = save(tmp_path / "dcp", model().state_dict())
    piece = next(folder.glob("*.distcp"))
    piece.rename(folder / "other.distcp")
    with pytest.raises(NotDcp, match=r"lacks a part of 0\.weight"):
        load_weights(folder)
    (folder / METADATA).write_bytes(b"")
    with pytest.raises(NotDcp, match="is not read"):
        load_weights(folder)
    with pytest.raises(NotDcp, match="holds no tensors"):
        load_weights(save(tmp_path / "empty", {"step": 3}))


def test_equal_folders_are_equal_objects(tmp_path: Path) -> None:
    """The name of a plan depends on the content, not on the place."""
    folder = save(tmp_path / "dcp", model().state_dict())
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in sorted(folder.iterdir(), reverse=True):
        (copy / path.name).write_bytes(path.read_bytes())
    assert b"".join(PackedFolder.from_folder(copy).parts()) == b"".join(PackedFolder.from_folder(folder).parts())
    header = PackedFolder.from_folder(folder).header
    assert set(json.loads(json.loads(header[8:])["__metadata__"]["dcp"])) == {path.name for path in folder.iterdir()}
