"""Plans are folded when the server starts: a page that is still open asks for its study at once, and a long log takes
seconds to fold.
"""

from __future__ import annotations

from contextlib import suppress

from app.api.services import Services
from app.events.database import DatabaseUnavailable
from app.events.plans import PlanUnusable

RECENT = 8
"""So many studies, the newest, are those that somebody may look at."""


def warm(use: Services) -> None:
    """Fold the plans of the newest studies, one after the other, until the server is to end.

    Where one cannot be had now, whoever asks for it is told.
    """
    with suppress(DatabaseUnavailable):
        with use.records.read() as rows:
            streams = dict.fromkeys(row.stream for row in rows.studies.page(limit=RECENT))
        for stream in streams:
            with suppress(PlanUnusable):
                if not use.stopping.is_set():
                    use.plans.get(stream)
