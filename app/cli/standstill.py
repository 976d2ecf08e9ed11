"""Why a study stands still, where nothing has changed for a while and the service cannot work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.cli.documents import Documents
    from app.cli.store import Store

Json = dict[str, Any]
ASK_SECONDS = 10.0


class Standstill:
    """Looks at a study that is followed, and asks the service what it lacks when nothing happens."""

    def __init__(self, client: Documents | Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._before: Json = {}
        self._since, self._reason = clock(), ""

    def reason(self, study: Json) -> str:
        """Why nothing happens; empty while something does, and where the service is well: a step may take long.

        A slot that waits says so itself, at once.
        """
        if waits := study.get("waits_for"):
            return "; ".join(waits)
        now, happened = self._clock(), study["progress"] | {"seconds_left": None, "state": study["state"]}
        if happened != self._before:
            self._before, self._since, self._reason = happened, now, ""
        elif now - self._since >= ASK_SECONDS:
            self._since, self._reason = now, self._ask()
        return self._reason

    def _ask(self) -> str:
        from stagetree.errors import ProblemError, Unreachable

        try:
            self._client.ready()
        except ProblemError as problem:
            return str(problem)
        except Unreachable:
            return ""  # whoever follows the study waits for the server itself
        return ""
