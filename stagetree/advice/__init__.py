"""Advice on a study file: what would make it cheaper, and where a tuner cannot do its task as configured.

Advice is derived from the study file alone, without running anything.
"""

from __future__ import annotations

from stagetree.advice.sharing import advice
from stagetree.advice.tuning import afterthoughts

__all__ = ["advice", "afterthoughts"]
