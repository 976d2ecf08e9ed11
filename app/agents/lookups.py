"""Look-ups that several tools share: a study by its name, its decisions, and the rest of the caller's budget."""

from __future__ import annotations

from stagetree.client import AsyncClient, NotFound
from stagetree.client.http import path_of
from stagetree.client.study_json import LAST, find_study_id
from stagetree.models.pages import History
from stagetree.models.service import Session


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
