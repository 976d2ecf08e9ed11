"""Replay: fold a log again, derive every decision of a study's tuner again, and compare it with the recorded one.

The proof that promotions follow from results and from nothing else: the same events give the same decisions in any
process, at any time (ASHA paper, §5.4). So do configurations that depend on no result: grids and draws. What a sampler
that learns has proposed was recorded, and is taken as it is; so is what users asked for.
"""

from __future__ import annotations

from app.search.replay.replaying import replay
from app.search.replay.report import Replay

__all__ = ["Replay", "replay"]
