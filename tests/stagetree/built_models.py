"""What tests do with a model as the trainer's process has it."""

from __future__ import annotations

import os
from typing import Any

from stagetree.runtime.model import HpTimeline, Model


def train_to(model: Model, until: int, hp: dict[str, Any]) -> Model:
    """The same model, trained up to a step."""
    timeline = HpTimeline(hp)
    while model.step < until:
        model.advance(timeline)
    return model


def image(model: Model) -> bytes:
    """The bytes of its checkpoint."""
    fd, size = model.save()
    with open(fd, "rb") as file:
        return os.pread(file.fileno(), size, 0)
