"""Mistakes of a first afternoon, made for real: each answer names the place and what would be right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import Stagetree
from stacks import ROOT

TRAINER = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer


class Sine(TorchTrainer):
    name = "sine"

    def __init__(self, *, seed, device):
        x = torch.linspace(-3, 3, 64)[:, None]
        points = TensorDataset(x, x.sin())
        super().__init__(seed=seed, device=device, model=nn.Linear(1, 1), train_data=points, valid_data=points)

    def make_optimizer(self, hp):
        return torch.optim.SGD(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch):
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])
"""

STUDY = """
name: s
trainer: sine
metric: val_loss
mode: min
space: {lr: [0.1, 0.2], bs: 32}
tuner: {kind: grid, max_steps: 3}
"""

SUM = """
from stagetree import Trainer


class Sum(Trainer):
    name = "sine"

    def __init__(self, *, seed, device):
        self.sum, self.count = 0.0, 0

    def setup(self, hp):
        self.lr, self.bs = hp.get("lr", 0.1), hp.get("bs")

    def train(self):
        self.count += 1
        self.sum += self.lr * self.count

    def evaluate(self):
        return {"val_loss": self.sum}

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STAGETREE_URL", raising=False)
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path


def run_command(*command: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, as in a terminal."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STAGETREE_")}
    environment["PYTHONPATH"] = str(ROOT)
    whole = [sys.executable, "-P", "-m", "stagetree", *command]
    return subprocess.run(whole, env=environment, capture_output=True, text=True, timeout=600, check=False)


TRAINERS = [
    ('lr=hp["lr"]', 'lr=hp["rate"]', "KeyError: 'the trainer reads rate, and is given bs, lr'"),
    ("def make_optimizer", "def make_optimiser", "Sine lacks make_optimizer; it has make_optimiser"),
    (
        "def __init__(self, *, seed, device)",
        "def __init__(self)",
        "Sine.__init__ must take seed and device: def __init__(self, *, seed, device)",
    ),
    ("nn.Linear(1, 1)", "nn.Linear(1, 1).cuda()", "there is no GPU here; use the `device` that the trainer is given"),
    ("batch[1])", "batch[1]).item()", "the loss must be a tensor that holds one number, got "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("right", "wrong", "answer"), TRAINERS, ids=[each[1] for each in TRAINERS])
def test_a_mistake_in_a_trainer_is_answered_first(here: Path, right: str, wrong: str, answer: str) -> None:
    (here / "trainer.py").write_text(TRAINER.replace(right, wrong))
    said = run_command("check", "study.yaml", "--device", "cpu")
    first = said.stdout.splitlines()[0]
    assert said.returncode == 1 and first.startswith("The trainer failed: ") and answer in first


@pytest.mark.slow
def test_a_forgotten_state_is_named(here: Path) -> None:
    (here / "trainer.py").write_text(SUM)
    said = run_command("check", "study.yaml", "--device", "cpu")
    assert said.returncode == 1 and "Likely: self.count not restored by load_state_dict" in said.stdout


@pytest.mark.parametrize(
    ("line", "code", "answer"),
    [
        ("preview study.yaml --set tuner.max_step=4", 2, "max_step: is not a field here; did you mean max_steps?\n"),
        ("preview study.yaml --set trainer=Sine", 0, "not in trainer.py beside the study file; did you mean sine?"),
        ("submit study.yaml", 69, "`stagetree run STUDY.yaml` makes one"),
    ],
)
def test_a_mistake_on_the_command_line(
    stagetree: Stagetree, here: Path, line: str, code: int, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagetree.client.http.DEFAULT_URL", "http://127.0.0.1:9")
    said = stagetree(*line.split())
    assert said.code == code and answer in said.err and "Traceback" not in said.err


@pytest.mark.slow
def test_the_mistakes_of_an_afternoon_are_answered(here: Path) -> None:
    """A study, a trial that it does not have, a changed trainer, and a study that failed its check."""
    run = "run", "study.yaml", "--slots", "1"
    assert run_command(*run).returncode == 0
    assert "has no trial 2: it has trials 0 and 1" in run_command("trial", "last", "2").stderr
    (here / "trainer.py").write_text(TRAINER + "\n# changed\n")
    assert "The files of trainer sine have changed: what s-" in run_command(*run).stderr
    assert "have changed" not in run_command(*run).stderr
    (here / "trainer.py").write_text(TRAINER.replace("batch[1])", "batch[1]).item()"))
    failed = run_command(*run)
    assert failed.returncode == 1
    assert failed.stdout.startswith("error   The trainer failed its check on the CPU: TypeError: the loss must be a ")
    waited = run_command("wait", "last")
    assert waited.returncode == 1 and "is failed" in waited.stdout + waited.stderr
    assert "has a result, so there are no best weights" in run_command("weights", "last").stderr
