"""Why a stack cannot start."""

from __future__ import annotations


class StackFailed(Exception):
    """The stack cannot start; the message is one sentence that says why."""
