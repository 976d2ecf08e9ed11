"""The error of a sequence that cannot be."""

from __future__ import annotations


class SequenceError(ValueError):
    """An invalid sequence: `field` is the path inside it, `problem` a sentence about the error."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field, self.problem = field, problem

    def nested_field(self, path: str) -> str:
        """The path of the error inside `path`; either may be empty."""
        return f"{path}{'.' if path and self.field and not self.field.startswith('[') else ''}{self.field}"
