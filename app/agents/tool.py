"""A tool: its name and description, its arguments, and its work with a client of the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from stagetree.client import AsyncClient
from stagetree.client.study_json import LAST
from stagetree.spec.fields import SpecPart

Json = dict[str, Any]


class ToolArguments(SpecPart):
    """The arguments of a tool. Their descriptions complete the sentences "must be ..." and "is missing: ..."."""


class OfStudy(ToolArguments):
    """The arguments of a tool for one study."""

    study: str = Field(default=LAST, max_length=200, description="the id or the name of a study; `last`: the newest")


Act = Callable[[AsyncClient, Any], Awaitable[Json]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. reads: whether it changes nothing, so that the scope `read` suffices."""

    name: str
    act: Act
    arguments: type[ToolArguments]
    reads: bool

    @property
    def description(self) -> str:
        """What the tool does and answers, for the agent."""
        return " ".join((self.act.__doc__ or "").split())

    @property
    def schema(self) -> Json:
        """The JSON Schema of the arguments, without titles, which repeat names."""
        schema: Json = _drop_titles(self.arguments.model_json_schema())
        schema.pop("description", None)
        return schema

    async def call(self, client: AsyncClient, given: Mapping[str, Any]) -> Json:
        """The answer. Raises `SpecError` for wrong arguments, and `StagetreeError`."""
        return await self.act(client, self.arguments(**given))


def _drop_titles(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_drop_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _drop_titles(part) for name, part in schema.items() if not (name == "title" and isinstance(part, str))
    }
