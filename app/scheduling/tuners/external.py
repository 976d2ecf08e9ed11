"""`external`: somebody outside adds trials over the API and reads their results; the tuner wants nothing."""

from __future__ import annotations

from app.domain.search_plan import TrialEvent
from app.scheduling.tuners.base import Tuner


class External(Tuner):
    """Ask and tell from outside. The study stays open until it is closed on request (`CloseStudy`) or cancelled."""

    open_ended = True

    def observe(self, event: TrialEvent) -> None:
        """Nothing to learn: whoever adds the trials decides."""

    def suggest(self) -> None:
        return None
