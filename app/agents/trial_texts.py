"""Short texts about trials and events, each on one line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from stagetree.models.trials import Trial
from stagetree.text import decision_text, rank_text, rough_duration, short_hp, value_text

MOST_CHARACTERS = 160
"""The longest text about hyper-parameters, an error or a note within an answer. Longer ones are cut."""


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text on one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def hp_text(hp: Mapping[str, Any]) -> str:
    """Hyper-parameters on one line, constants as values: lr=0.1 bs=64."""
    return cut(short_hp(hp))


def trial_text(trial: Trial) -> str:
    """A trial with its result and spread, its standing and its hyper-parameters."""
    result = next((each for each in (trial.last, trial.best) if each is not None and each.value == trial.value), None)
    value = "no result yet" if result is None else f"{value_text(result.to_json())} at step {result.step}"
    return f"trial {trial.trial}: {value}; {cut(trial.standing)}; {hp_text(trial.hp)}"


def decided_text(kind: str, trial: int | None, steps: int | None, reason: Mapping[str, Any]) -> str:
    """A decision with its reason: trial 3 is pruned: rank 5 of 9, the best 3 are promoted."""
    if trial is None:
        return f"study: {kind}{_reason_text(reason)}"
    if kind in ("promote", "stop"):
        return f"{decision_text(kind, trial, steps or 0)}{_reason_text(reason)}"
    return f"trial {trial}: {kind}{'' if steps is None else f' for {steps} steps'}"


def _reason_text(reason: Mapping[str, Any]) -> str:
    if not reason:
        return ""
    return f": {rank_text(reason) or cut(json.dumps(reason, ensure_ascii=False))}"


def numbers_text(numbers: Iterable[int], count: int) -> str:
    """Some of `count` trials by number: trials 3, 5 and 7 more."""
    if not count:
        return "steps that no trial of it waits for"
    named = list(numbers)[:3]
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return f"trial{'' if count == 1 else 's'} {', '.join(map(str, named))}{more}"


def elapsed_text(at: float, now: float) -> str:
    """A moment and how long ago it was: since 12:03:10 UTC (5 min)."""
    return f"since {time.strftime('%H:%M:%S', time.gmtime(at))} UTC ({rough_duration(max(0.0, now - at))})"
