"""A trainer that is sound up to a step, and wrong from there on: of the property that no number is wrong in silence."""

from __future__ import annotations

from typing import Any

from small import Forgetful


class WrongFrom(Forgetful):
    """Its count is not in the state, and matters from the step `since` on."""

    name = "wrong-from"

    def __init__(self, *, since: int, **how: Any) -> None:
        super().__init__(**how)
        self.since = since

    def push(self) -> float:
        return 1.0 / self.count if self.count and self.count >= self.since else 0.5
