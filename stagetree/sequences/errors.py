"""The error of a sequence that cannot be."""

from __future__ import annotations


class SequenceError(ValueError):
    """A sequence that cannot be: `field` is the path inside it, `problem` what is wrong and what would be right."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field, self.problem = field, problem
