"""A tool: its name, description and arguments, and its work with a client of the API. Also the look-ups of tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from stagetree.client import AsyncClient, NotFound
from stagetree.client.http import path_of
from stagetree.client.study_json import LAST, find_study_id
from stagetree.models.pages import History
from stagetree.models.service import Session
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


async def history_of(client: AsyncClient, study: str) -> History:
    """The decisions of a study with their events, and its better and better results."""
    return History.from_json(await client.http.get(f"{path_of(study)}/history"))


async def token_rest(client: AsyncClient) -> str:
    """The rest of the caller's slot time; empty for a token without a limit."""
    session = Session.from_json(await client.http.get("/session"))
    left = session.slot_seconds_left
    return "" if left is None else f"token {session.name}: {left:,.0f} s of slot time"


async def study_id(client: AsyncClient, meant: str) -> str:
    """The id of the study with this id or name, or of the newest one for `last`. Raises `NotFound`."""
    if meant != LAST:
        try:
            return (await client.study(meant, trials=False)).study
        except NotFound:
            pass
    return await find_study_id(client.http, meant)
