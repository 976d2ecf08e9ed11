"""Applies events to a search plan.

`evolve` accepts every event without checks and changes the plan in place. The caller owns the plan.
"""

from __future__ import annotations

from app.domain.evolve.folding import collector_paused, evolve, fold, struck_studies

__all__ = ["collector_paused", "evolve", "fold", "struck_studies"]
