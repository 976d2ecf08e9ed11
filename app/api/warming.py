"""Plans are folded when the server starts: a page that is still open asks for its study at once, and a long log takes
seconds to fold.
"""

from __future__ import annotations

import gc
import logging
from contextlib import suppress

from app.api.services import Services
from app.domain.evolve import collector_paused
from app.events.plans import PlanUnusable

logger = logging.getLogger(__name__)

RECENT = 8
"""So many studies, the newest, are those that somebody may look at."""

LONG = 10_000
"""Events of a plan; what comes of fewer is gone through in no time."""


def warm(use: Services) -> None:
    """Fold the plans of the newest studies, one after the other, until the server is to end.

    What goes wrong here ends nothing: whoever asks for a plan is told why it cannot be had.
    """
    try:
        with use.records.read() as rows:
            streams = dict.fromkeys(row.stream for row in rows.studies.page(limit=RECENT))
        for stream in streams:
            with suppress(PlanUnusable):
                if not use.stopping.is_set():
                    _fold(use, stream)
    except Exception as problem:
        logger.warning("no plans are folded before somebody asks for them: %s", problem)


def _fold(use: Services, stream: str) -> None:
    """What was folded stays: the collector would go through a long log three times, while somebody waits."""
    with collector_paused():
        if use.plans.get(stream).version > LONG:
            gc.freeze()
