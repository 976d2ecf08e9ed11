"""What each event does to a search plan.

`evolve` is total, silent and boring: it believes every event and changes the plan in place (whoever folds owns it).
"""

from __future__ import annotations

from app.domain.evolve.folding import collector_paused, evolve, fold, strikes

__all__ = ["collector_paused", "evolve", "fold", "strikes"]
