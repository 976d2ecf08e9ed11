"""`ReduceLROnPlateau` in a script or a trainer: exact where its state is saved, and named where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forks import check_in_fork

HP = {"momentum": {"family": "values", "values": [0.0, 0.9], "milestones": [3]}}

SCRIPT = """
import stagetree
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

run = stagetree.attach("fit")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

def save():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "plateau": plateau.state_dict()}

def load(state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    plateau.load_state_dict(state["plateau"])

def evaluate():
    return {"lr": optimizer.param_groups[0]["lr"]}

run.state(save=save, load=load, evaluate=evaluate)
for step, hp in run.steps():
    optimizer.zero_grad()
    loss = (model(torch.randn(8, 4)) - 1).square().mean()
    loss.backward()
    optimizer.param_groups[0]["momentum"] = hp["momentum"]
    optimizer.step()
    plateau.step(loss.item())
"""

TRAINER = """
import torch
from stagetree import TorchTrainer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import TensorDataset

class Fit(TorchTrainer):
    name = "fit"

    def __init__(self, *, seed, device):
        data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
        model = torch.nn.Linear(4, 1)
        super().__init__(
            seed=seed, device=device, model=model, train_data=data, valid_data=data, batches_per_step=1
        )

    def make_optimizer(self, hp):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return optimizer

    def loss(self, batch):
        return (self.model(batch[0]) - batch[1]).square().mean()

    def train(self):
        super().train()
        self.plateau.step(self.model.weight.norm().item())

    def state_dict(self):
        return {"trainer": super().state_dict(), "plateau": self.plateau.state_dict()}

    def load_state_dict(self, state):
        super().load_state_dict(state["trainer"])
        self.plateau.load_state_dict(state["plateau"])
"""

FORGOTTEN = (
    (', "plateau": plateau.state_dict()}', "}"),
    ('    plateau.load_state_dict(state["plateau"])\n', ""),
    (', "plateau": self.plateau.state_dict()}', "}"),
    ('    self.plateau.load_state_dict(state["plateau"])\n', ""),
)
IN_EVALUATE = (
    ("    plateau.step(loss.item())\n", ""),
    ("def evaluate():\n", "def evaluate():\n    plateau.step(model.weight.norm().item())\n"),
)


def differences(folder: Path, text: str, *changes: tuple[str, str]) -> dict[str, str]:
    """What `check` finds of a text in which some parts are others."""
    for old, new in changes:
        text = text.replace(old, new)
    file = folder / "fit.py"
    file.write_text(text)
    hp: dict[str, Any] = HP if text.startswith(SCRIPT[:20]) else HP | {"bs": 8}
    found: dict[str, str] = check_in_fork({"file": str(file), "name": "fit", "args": {}, "seed": 0, "hp": hp})[
        "differences"
    ]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("text", [SCRIPT, TRAINER], ids=["script", "trainer"])
def test_a_plateau_that_is_saved_is_exact(tmp_path: Path, text: str) -> None:
    assert differences(tmp_path, text) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "place"),
    [(SCRIPT, "plateau.last_epoch (a global of fit.py)"), (TRAINER, "self.plateau.last_epoch")],
    ids=["script", "trainer"],
)
def test_a_plateau_that_is_not_saved_is_named(tmp_path: Path, text: str, place: str) -> None:
    found = differences(tmp_path, text, *FORGOTTEN)["split"]
    assert f"Likely: {place}, " in found and " not restored by " in found


@pytest.mark.slow
def test_a_plateau_that_steps_in_evaluate_is_detected(tmp_path: Path) -> None:
    found = differences(tmp_path, SCRIPT, *IN_EVALUATE)
    assert found["watched"].endswith("evaluate() or save() of run.state changes something that the loop reads")
