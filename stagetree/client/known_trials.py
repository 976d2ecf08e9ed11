"""The configurations that a client has asked of a study, and the events that it has heard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from stagetree.client.http import Json

Hp = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a trial after `step` steps: `metrics` by name, and as `value` the study's metric."""

    trial: int
    step: int
    value: float
    metrics: Mapping[str, float | None]


@dataclass(slots=True, eq=False)
class PendingAsk:
    """A configuration that is wanted at a step. key: the configuration's name with us. nodes: its places there, one for
    each of its repeats that differ.
    """

    key: str
    hp: Json
    step: int
    result: asyncio.Future[Result]
    trial: int = -1
    nodes: tuple[str, ...] = ()


@dataclass(slots=True)
class Known:
    """What the client has heard of a study."""

    study: Json = field(default_factory=dict)
    trials: dict[int, Json] = field(default_factory=dict)
    longest: dict[str, int] = field(default_factory=dict)  # by configuration: the trial with the most steps
    metrics: dict[tuple[str, int], Mapping[str, float | None]] = field(default_factory=dict)
    position: int = 0
    endings: int = 0

    def take_all(self, trials: Iterable[Json]) -> None:
        """Know how all trials stand, and of no others: they may have been struck."""
        self.trials, self.longest = {}, {}
        for trial in trials:
            self.take(trial)

    def asked_again(self, event: Json) -> tuple[str, tuple[str, ...]]:
        """After all was struck, a trial is asked for again: its configuration's name with us, and its last nodes."""
        number, ways = event["trial"], [event.get("path") or (), *event.get("repeats", ())]
        before = self.trials.get(number, {"trial": number, "state": "waiting", "value": None})
        hp: Json = event.get("hp") or before["hp"]
        paths = [[*old, *new] for old, new in zip_longest(paths_of(before), ways, fillvalue=())]
        self.take({**before, "hp": hp, "steps": event["steps"], "path": paths[0], "repeats": paths[1:]})
        return key_of(hp), last_nodes(self.trials[number])

    def take(self, trial: Json) -> None:
        """Know how a trial stands."""
        number, key = trial["trial"], key_of(trial["hp"])
        self.trials[number] = trial
        if trial["steps"] >= self.trials[self.longest.setdefault(key, number)]["steps"]:
            self.longest[key] = number

    def extendable(self, key: str, step: int) -> int | None:
        """The trial that is there, or gets there by being trained on."""
        number = self.longest.get(key)
        if number is None or self.trials[number]["state"] not in ("waiting", "running", "completed"):
            return None
        return number if self.trials[number]["steps"] <= step else None


def key_of(hp: Hp) -> str:
    """A configuration's name with us."""
    return json.dumps(hp, sort_keys=True)


def paths_of(trial: Json) -> list[list[str]]:
    """The nodes on the way of each of its repeats. A trial of a list has none; an older server names the first."""
    return [trial.get("path", []), *trial.get("repeats", ())]


def last_nodes(trial: Json) -> tuple[str, ...]:
    """The different nodes in which its repeats end."""
    return tuple(dict.fromkeys(path[-1] for path in paths_of(trial) if path))
