"""Confirmation: a tool that costs steps first answers its price, and acts when called again with the price's token.

The token is a digest of the request and its price. So a server that was restarted meanwhile accepts it, and none is
valid after the price has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from app.agents.tool import Json
from stagetree.models.trials import Branch

CONFIRM = "nothing yet: the token that was answered with the price; with it, the trial is added"
"""The description of the argument, which completes "must be"."""

DIGITS = 12


def token_of(tool: str, study: str, request: Mapping[str, Any], price: Branch) -> str:
    """The token that confirms this request at this price."""
    steps = [price.steps, price.shared, price.new, price.again]
    text = json.dumps([tool, study, dict(request), steps], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:DIGITS]


def ask_to_confirm(price: str, token: str, given: str | None, verification: str) -> Json:
    """The answer before anything is added. given: the token of the call, for another price or another request."""
    changed = "" if given is None else "The price or the request has changed since that token: nothing was added. "
    how = f"{changed}Nothing is trained yet: call again with this `confirm` to accept the price."
    return {"price": price, "confirm": token, "next": how, "verification": verification}
