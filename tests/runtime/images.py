"""Saved states as bytes."""

from __future__ import annotations

from typing import Any

from app.workers.state import State
from stagetree.runtime.checkpoints.state_format import write


def image_of(state: Any) -> bytes:
    written = State(*write(state))
    try:
        return bytes(written.view())
    finally:
        written.close()
