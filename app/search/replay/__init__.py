"""Replay: fold a log again, derive every decision of a study's tuner again, and compare it with the recorded one.

It proves that promotions follow from results only: the same events give the same decisions in any process, at any time
(ASHA paper, §5.4). So do configurations that depend on no result: grids and random samples. The proposals of a sampler
that learns are taken from the record, and so are users' requests.
"""

from __future__ import annotations

from app.search.replay.replaying import replay
from app.search.replay.report import Replay

__all__ = ["Replay", "replay"]
