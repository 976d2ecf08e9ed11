"""The classes that users write trainers with: `Trainer`, and `TorchTrainer` and its parts.

Importing this package imports no torch.
"""

from __future__ import annotations

from stagetree.trainer.base import Trainer

__all__ = ["Trainer"]
