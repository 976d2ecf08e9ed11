"""What a study's search is told, and what it knows."""

from __future__ import annotations

from pydantic import Field

from stagetree.models.answer import Answer, Json


class Suggestion(Answer, needs=("suggestion", "hp")):
    """A configuration that somebody suggested, whole or in part."""

    suggestion: int = Field(description="its number in the study, from 0 on")
    hp: Json = Field(description="what was suggested: by hyper-parameter, or by the place of a free value")
    by: str = Field(description="the principal that suggested it; empty for none")
    at: float = Field(description="when, in Unix seconds")
    trial: int | None = Field(description="the trial that came of it; null while its place has not come")


class Suggestions(Answer):
    """The suggestions, in the order in which their places come."""

    items: list[Suggestion]
