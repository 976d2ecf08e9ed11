"""What users write trainers with: `Trainer`, and `TorchTrainer` with the parts that it is made of.

Importing this package imports no torch.
"""

from __future__ import annotations

from stagetree.trainer.base import Trainer

__all__ = ["Trainer"]
