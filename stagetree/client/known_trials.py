"""A client's copy of a study's trials: requested configurations, and the events received."""

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
    """A configuration that is requested at a step."""

    key: str
    """The client's name for the configuration."""
    hp: Json
    step: int
    result: asyncio.Future[Result]
    trial: int = -1
    nodes: tuple[str, ...] = ()
    """The last node of each repeat; repeats that end in the same node count once."""


@dataclass(slots=True)
class Known:
    """What the client knows about a study from answers and events."""

    study: Json = field(default_factory=dict)
    trials: dict[int, Json] = field(default_factory=dict)
    longest: dict[str, int] = field(default_factory=dict)  # by configuration: the trial with the most steps
    metrics: dict[tuple[str, int], Mapping[str, float | None]] = field(default_factory=dict)
    position: int = 0
    endings: int = 0

    def take_all(self, trials: Iterable[Json]) -> None:
        """Replace all trials. Others may have been discarded by the server."""
        self.trials, self.longest = {}, {}
        for trial in trials:
            self.take(trial)

    def take_repeated_request(self, event: Json) -> tuple[str, tuple[str, ...]]:
        """Process a trial requested again after a restart. Returns its configuration's key and its last nodes."""
        number, ways = event["trial"], [event.get("path") or (), *event.get("repeats", ())]
        before = self.trials.get(number, {"trial": number, "state": "waiting", "value": None})
        hp: Json = event.get("hp") or before["hp"]
        paths = [[*old, *new] for old, new in zip_longest(paths_of(before), ways, fillvalue=())]
        self.take({**before, "hp": hp, "steps": event["steps"], "path": paths[0], "repeats": paths[1:]})
        return configuration_key(hp), last_nodes(self.trials[number])

    def take(self, trial: Json) -> None:
        """Update one trial."""
        number, key = trial["trial"], configuration_key(trial["hp"])
        self.trials[number] = trial
        if trial["steps"] >= self.trials[self.longest.setdefault(key, number)]["steps"]:
            self.longest[key] = number

    def extendable(self, key: str, step: int) -> int | None:
        """The trial that reaches `step`, now or by being extended."""
        number = self.longest.get(key)
        if number is None or self.trials[number]["state"] not in ("waiting", "running", "completed"):
            return None
        return number if self.trials[number]["steps"] <= step else None


def configuration_key(hp: Hp) -> str:
    """The client's name for a configuration."""
    return json.dumps(hp, sort_keys=True)


def paths_of(trial: Json) -> list[list[str]]:
    """The nodes along the path of each repeat. Trials from a list response have no paths."""
    return [trial.get("path", []), *trial.get("repeats", ())]


def last_nodes(trial: Json) -> tuple[str, ...]:
    """The unique nodes in which the repeats end."""
    return tuple(dict.fromkeys(path[-1] for path in paths_of(trial) if path))
