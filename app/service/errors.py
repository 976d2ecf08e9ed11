"""What is refused before a command is decided, or that cannot be shown.

HttpProblem         anything that is refused by itself
└── InvalidField    422, with what is wrong at which field
    └── WrongCursor the cursor of no page of ours
"""

from __future__ import annotations


class HttpProblem(Exception):
    """A refusal with its HTTP status; the message is its detail."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class InvalidField(HttpProblem):
    """The request is well-formed, and wrong at some field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(422, f"{field} {problem}")
        self.errors = [{"field": field, "problem": problem}]


class WrongCursor(InvalidField):
    """The cursor is not one of ours."""

    def __init__(self, cursor: str) -> None:
        super().__init__("cursor", f"must be the next_cursor of an earlier page, got {cursor!r}")
