"""Files of weights, of any writer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from images import image_of
from safetensors.torch import save_file

from stagetree.runtime.checkpoints.weight_files import kind_of, load_weights

WEIGHTS = {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3)}


def checkpoint(path: Path, **more: object) -> Path:
    path.write_bytes(image_of({"trainer": {"model": WEIGHTS, "epoch": 3, **more}, "generators": {}}))
    return path


def assert_equal_weights(path: Path) -> bool:
    found = load_weights(path)
    return found.keys() == WEIGHTS.keys() and all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


def test_each_format_gives_the_same_weights(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "a")
    torch.save(WEIGHTS, tmp_path / "b")
    torch.save({"epoch": 3, "state_dict": WEIGHTS}, tmp_path / "c")
    torch.save({"model": torch.nn.Linear(4, 3).state_dict() | WEIGHTS}, tmp_path / "d")
    torch.save(WEIGHTS, tmp_path / "e", _use_new_zipfile_serialization=False)
    checkpoint(tmp_path / "f")
    assert all(assert_equal_weights(tmp_path / name) for name in "abcdef")


def test_measured_averages_of_a_checkpoint_are_used(tmp_path: Path) -> None:
    found = load_weights(checkpoint(tmp_path / "c", average={"bias": torch.zeros(3)}))
    assert torch.equal(found["bias"], torch.zeros(3)) and torch.equal(found["weight"], WEIGHTS["weight"])


def test_formats_are_recognised_by_their_first_bytes(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "weights")
    torch.save(WEIGHTS, tmp_path / "saved")
    checkpoint(tmp_path / "checkpoint")
    for name, content in {"empty": b"", "text": b"not at all weights", "list": b"\2\0\0\0\0\0\0\0[]"}.items():
        (tmp_path / name).write_bytes(content)
    kinds = {path.name: kind_of(path.open("rb")) for path in tmp_path.iterdir()}
    assert kinds == {
        "weights": "safetensors",
        "saved": "torch",
        "checkpoint": "checkpoint",
        "empty": None,
        "text": None,
        "list": None,
    }


def test_files_without_weights_are_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a")
    (tmp_path / "b").write_text("no weights")
    for name in "ab":
        with pytest.raises(ValueError, match=r"that is no safetensors file|holds no state dict"):
            load_weights(tmp_path / name)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    import pickle

    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "harmed",))

    torch.save({"weight": Harm()}, tmp_path / "a")
    with pytest.raises(pickle.UnpicklingError):
        load_weights(tmp_path / "a")
    assert not (tmp_path / "harmed").exists()
