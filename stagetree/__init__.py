"""What users import: sequences, spaces, study specs, trainers and the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagetree.trainer import Trainer

if TYPE_CHECKING:
    from stagetree.torch_trainer import TorchTrainer

__all__ = ["TorchTrainer", "Trainer"]


def __getattr__(name: str) -> Any:
    """Import torch only for those who ask for what needs it."""
    if name == "TorchTrainer":
        from stagetree.torch_trainer import TorchTrainer

        return TorchTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
