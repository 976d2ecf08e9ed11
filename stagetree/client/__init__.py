"""The client of a server, over HTTP: `Client`, and `AsyncClient` for `await`."""

from __future__ import annotations

from stagetree.client.client import AsyncClient, Client
from stagetree.errors import Conflict, Invalid, NotFound, ProblemError, StagetreeError, Unreachable

__all__ = ["AsyncClient", "Client", "Conflict", "Invalid", "NotFound", "ProblemError", "StagetreeError", "Unreachable"]
