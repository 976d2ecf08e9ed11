"""The weights of a checkpoint load with plain safetensors into a plain module, and have the measured metric."""

from __future__ import annotations

from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from built_models import image as image_of_model
from safetensors.torch import load, load_file
from test_torch_trainer import Tiny
from torch import nn

from stagetree import export_weights, load_state
from stagetree.errors import StagetreeError
from stagetree.runtime.checkpoints import image_layout
from stagetree.runtime.checkpoints.weight_files import find_model_copies
from stagetree.runtime.debug import DebugTrial, export_state
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.model import Model
from tests.runtime.images import image_of


def checkpoint_of(trainer_state: Any) -> bytes:
    return image_of({"trainer": trainer_state, "generators": {"torch": torch.get_rng_state()}})


def train_tiny(**args: Any) -> Tiny:
    torch.manual_seed(0)
    trainer = Tiny(seed=0, device="cpu", **args)
    trainer.setup({"lr": 0.1, "bs": 4})
    trainer.train()
    return trainer


@pytest.mark.parametrize("args", [{}, {"average_decay": 0.9}])
def test_a_plain_module_measures_the_value_on_record(tmp_path: Path, args: dict[str, Any]) -> None:
    trainer = train_tiny(**args)
    (tmp_path / "best.safetensors").write_bytes(export_weights(checkpoint_of(trainer.state_dict())))
    plain = nn.Sequential(nn.Linear(1, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)).eval()
    plain.load_state_dict(load_file(tmp_path / "best.safetensors"))
    numbers = torch.arange(23.0).unsqueeze(1)
    with torch.no_grad():
        error = (plain(numbers) - numbers / 10).square().mean()
    assert error.item() == trainer.evaluate()["val_loss"]


@pytest.mark.parametrize("before", ["nothing", "a step", "a state"])
def test_weights_loaded_into_the_model_are_what_evaluate_measures(before: str) -> None:
    """As people write it: `trainer.model.load_state_dict(load_file(path))`, then `trainer.evaluate()`."""
    best = train_tiny(average_decay=0.9)
    weights = load(export_weights(checkpoint_of(best.state_dict())))
    torch.manual_seed(1)
    trainer = Tiny(seed=0, device="cpu", average_decay=0.9)
    if before != "nothing":
        trainer.setup({"lr": 0.05, "bs": 4})
        trainer.train() if before == "a step" else trainer.load_state_dict(best.state_dict() | {"offset": 0})
    trainer.model.load_state_dict({name: each + 0.5 for name, each in weights.items()})
    assert trainer.evaluate() != best.evaluate()
    trainer.model.load_state_dict(weights)
    assert trainer.evaluate() == best.evaluate()


def test_in_a_run_only_the_first_weights_set_the_average() -> None:
    """A trainer may load others for a while, to measure them: the average must not depend on evaluation."""
    trainer = Model(Tiny(seed=0, device="cpu", average_decay=0.9), "cpu").trainer
    trainer.setup({"lr": 0.1, "bs": 4})
    trainer.model.load_state_dict(zeros := {name: 0 * each for name, each in trainer.model.state_dict().items()})
    assert not any(each.any() for each in trainer.state_dict()["average"].values())
    trainer.train()
    before = {name: each.clone() for name, each in trainer.state_dict()["average"].items()}
    trainer.model.load_state_dict(zeros)
    assert all(torch.equal(each, before[name]) for name, each in trainer.state_dict()["average"].items())


def test_a_copied_or_saved_model_has_no_average() -> None:
    trainer = train_tiny(average_decay=0.9)
    measured, buffer = trainer.evaluate(), BytesIO()
    torch.save(trainer.model, buffer)
    buffer.seek(0)
    for copied in (deepcopy(trainer.model), torch.load(buffer, weights_only=False)):
        copied.load_state_dict({name: 0 * each for name, each in copied.state_dict().items()})
        assert trainer.evaluate() == measured


def test_a_trainer_without_a_model_gives_all_its_tensors() -> None:
    image = export_weights(checkpoint_of({"net": [torch.ones(2), {"b": np.zeros(3)}], "count": 3}))
    assert {name: tensor.shape for name, tensor in load(image).items()} == {"net.0": (2,), "net.1.b": (3,)}


@pytest.mark.parametrize(
    "wrap", [lambda saved: {"state": saved}, lambda saved: {"state": {"state": saved, "streams": []}}]
)
def test_the_model_of_a_script_has_its_own_names(wrap: Any) -> None:
    """They began with state.model., and with state.state.model. where the script reads a stream."""
    model, shadow = {"0.weight": torch.ones(2, 2)}, {"0.weight": torch.zeros(2, 2)}
    image = checkpoint_of(wrap({"model": model, "optimizer": {"state": model}, "shadow": shadow}))
    assert list(load(export_weights(image))) == ["0.weight"]
    assert find_model_copies(image) == ["shadow"]
    assert list(load(export_weights(checkpoint_of(wrap({"net": model}))))) != ["0.weight"]


def test_a_users_own_average_is_distinguished_from_the_model() -> None:
    """Its `evaluate` may measure that, and then the value is not of the weights that are written."""
    model = {"0.weight": torch.ones(2, 2), "0.bias": torch.ones(2)}
    others: dict[str, Any] = {"optimizer": model, "average": model, "teacher": {"head": torch.ones(2)}, "step": 3}
    own = {"shadow": dict(model), "swa": {f"module.{name}": each for name, each in model.items()}}
    assert find_model_copies(checkpoint_of({"model": model, **others, **own})) == ["shadow", "swa"]
    assert find_model_copies(checkpoint_of({"model": model, **others})) == []
    assert find_model_copies(checkpoint_of({"net": model, "shadow": model})) == []  # all of it is written


def test_every_dtype_stays_aligned() -> None:
    model = {name: torch.ones(3).to(dtype) for name, dtype in image_layout.DTYPES.items() if name != "U64"}
    assert {name: each.dtype for name, each in load(export_weights(checkpoint_of({"model": model}))).items()} == {
        name: each.dtype for name, each in model.items()
    }


@pytest.mark.parametrize("image", [b"", b"\x00" * 20, b"\x02" + bytes(7) + b"[]", export_weights])
def test_what_is_no_checkpoint_is_refused(image: Any) -> None:
    if callable(image):
        image = image(checkpoint_of({"model": {"w": torch.ones(1)}}))  # weights are none
    with pytest.raises(ValueError, match="that is no"):
        export_weights(image)
    with pytest.raises(ValueError, match="no tensors"):
        export_weights(checkpoint_of({"model": {}}))


def test_a_state_can_be_loaded_from_its_file(tmp_path: Path) -> None:
    image = checkpoint_of({"model": {"w": torch.arange(3.0)}, "epoch": 2})
    (tmp_path / "state").write_bytes(image)
    (tmp_path / "weights").write_bytes(export_weights(image))
    assert load_state(tmp_path / "state")["epoch"] == 2
    assert load_state(tmp_path / "weights")["w"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("cut", [3, 60, -1])
def test_a_file_that_is_none_or_not_whole_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "best.safetensors"
    path.write_bytes(export_weights(checkpoint_of({"model": {"w": torch.arange(3.0)}})))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"best\.safetensors: (that is no safetensors file|the file is cut off)$"):
        load_state(path)


@pytest.mark.parametrize("args", [{}, {"average_decay": 0.9}])
def test_a_plain_model_is_exported_as_it_was_measured(tmp_path: Path, args: dict[str, Any]) -> None:
    trainer = train_tiny(**args)
    before = {name: each.clone() for name, each in trainer.model.state_dict().items()}
    trainer.export(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    wanted = load(export_weights(checkpoint_of(trainer.state_dict())))
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in found)
    assert all(torch.equal(each, before[name]) for name, each in trainer.model.state_dict().items())


FILE = """
from stagetree import Trainer
from test_torch_trainer import Tiny


class Own(Tiny):
    name = "own"

    def export(self, folder):
        (folder / "said").write_text(f"{self.epoch} {self.model.training}")


class Plain(Trainer):
    name = "plain"

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self): ...

    def evaluate(self):
        return {"lr": self.lr}

    def state_dict(self):
        return {"count": 1}

    def load_state_dict(self, state): ...


class Failing(Tiny):
    name = "failing"

    def export(self, folder):
        raise OSError("no room")
"""


def test_a_trainer_is_built_and_loaded_to_export_a_state(tmp_path: Path) -> None:
    file, into, image = tmp_path / "own.py", tmp_path / "into", tmp_path / "state"
    file.write_text(FILE)
    into.mkdir()
    image.write_bytes(image_of_model(Model(train_tiny(), "cpu")))

    def export(name: str) -> bool:
        hp = {"lr": 0.1, "bs": 4}
        taken = DebugTrial(file=str(file), name=name, args={}, seed=0, hp=hp, determinism="off")
        return export_state(taken, image, 1, into)

    assert export("own")
    assert (into / "said").read_text() == "1 True"
    with pytest.raises(OSError, match="no room"):
        export("failing")


def test_a_trainer_without_tensors_gets_advice_on_exporting(tmp_path: Path) -> None:
    """`stagetree weights --export` ended with a traceback of its own."""
    file, image = tmp_path / "own.py", tmp_path / "state"
    file.write_text(FILE)
    image.write_bytes(image_of_model(Model.build(load_trainer(file, "plain"), {}, 0, "cpu")))
    taken = DebugTrial(file=str(file), name="plain", args={}, seed=0, hp={"lr": 0.1}, determinism="off")
    with pytest.raises(StagetreeError, match=r"holds no tensors.*: give the trainer a method `export\(self, folder\)`"):
        export_state(taken, image, 1, tmp_path)
