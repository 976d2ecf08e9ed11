"""Small studies for an in-process cluster."""

from __future__ import annotations

from typing import Any

from stacks import Json
from toys import switch


def spec(*trials: tuple[Json, int], **fields: Any) -> Json:
    listed = [{"hp": {"lr": 0.1, **hp}, "steps": steps} for hp, steps in trials]
    named = {"name": "study", "trainer": "toy", "metric": "score", "mode": "max"}
    return {**named, "tuner": {"kind": "trials", "trials": listed}, **fields}


BRANCHES = spec(({"lr": switch(0.1, 0.2, 4)}, 8), ({"lr": switch(0.1, 0.3, 4)}, 8))
"""Two trials that part at step 4: 12 steps of 16."""

ALONE = {**BRANCHES, "merge": False, "trainer_args": {"tag": "calm"}}
"""The same on another plan, each by itself: what must come of them."""
