"""What each event does to a search plan.

`evolve` is total, silent and boring: it believes every event and changes the plan in place (whoever folds owns it).
"""

from __future__ import annotations

from app.domain.evolve.folding import collector_paused, evolve, fold, strikes
from app.domain.evolve.results import MAX_UNSAVED

__all__ = ["MAX_UNSAVED", "collector_paused", "evolve", "fold", "strikes"]
