"""The contract of a trainer, and that stating it costs no import of torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from stagetree import Trainer


class Counter(Trainer):
    """Trains by counting."""

    name = "counter"

    def setup(self, hp: dict[str, Any]) -> None: ...
    def train(self) -> None: ...
    def evaluate(self) -> dict[str, float]:
        return {"count": 0.0}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_a_trainer_keeps_its_arguments() -> None:
    trainer = Counter(seed=3, device="cuda:1", width=32)
    assert (trainer.seed, trainer.device, trainer.trainer_args) == (3, "cuda:1", {"width": 32})


@pytest.mark.parametrize("method", ["setup", "train", "evaluate", "state_dict", "load_state_dict"])
def test_a_trainer_without_a_method_cannot_be_made(method: str) -> None:
    partial = type("Partial", (Counter,), {method: getattr(Trainer, method)})
    with pytest.raises(TypeError, match=method):
        partial(seed=0, device="cpu")


WITHOUT_TORCH = ("trainer", "source.versions", "source.discovery", "runtime.checkpoints.weight_files")


def test_torch_is_not_imported() -> None:
    """To state a trainer, to name its version, or to read the weights of a checkpoint."""
    look = "import_module(f'stagetree.{name}'); assert not {'torch', 'numpy'} & sys.modules.keys(), name"
    code = f"import sys\nfrom importlib import import_module\nfor name in {WITHOUT_TORCH}: {look}"
    subprocess.run([sys.executable, "-c", code], check=True)
