"""How a model that was trained in another way is compared with one on record, and what it has beside its state."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from stagetree.runtime import attributes, inexact, state_format, suspects
from stagetree.runtime.assigned import forgotten
from stagetree.runtime.attributes import Seen
from stagetree.runtime.failures import plain
from stagetree.runtime.loading import imports_of
from stagetree.runtime.model import Model
from stagetree.runtime.timeline import Timeline

COMPARED = ("trainer", "generators")
"""Of a state. Where it was made changes nothing of what is loaded."""

MOST = 20
"""So many attributes are named."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a trainer had beside its state at a moment, and which of its modules were in training mode."""

    seen: Mapping[str, Seen]
    modes: Mapping[str, bool]

    @classmethod
    def at(cls, model: Model, file: str) -> Look:
        trainer = model.trainer
        seen = attributes.of_trainer(trainer) | attributes.of_code(trainer, _modules(file))
        return cls(seen, suspects.modes(trainer))


@dataclass(slots=True)
class Looks:
    """Those at the trainer of one process, by names that the slot gives them."""

    looks: dict[str, Look] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)  # modules whose mode evaluations have changed
    forgotten: list[str] | None = None  # numbers of its one model; None as long as nobody has looked

    def take(self, name: str, model: Model, file: str) -> None:
        self.looks[name] = Look.at(model, file)

    @contextmanager
    def measuring(self, model: Model) -> Iterator[None]:
        """Note which modules an evaluation leaves in another mode."""
        before = suspects.modes(model.trainer) if self.looks else {}
        yield
        self.changed.update(suspects.changed_modes(before, suspects.modes(model.trainer)) if before else ())

    def stray(self, first: str, words: str, model: Model, timeline: Timeline) -> dict[str, Any]:
        """What differs between the look `first` and that at `used`, by name, and the likely cause of a difference that
        is there by now.

        words: where it was seen first. What differs from the look `before`, if there is one, came back with the state.
        """
        before, now = self.looks[first], self.looks["used"]
        left = self.looks.get("before")
        names = attributes.differing(before.seen, now.seen)
        if left is not None:
            names = [name for name in names if name in left.seen and left.seen[name].digest == now.seen[name].digest]
        if self.forgotten is None:
            self.forgotten = forgotten(model, timeline)
        modes = suspects.changed_modes(before.modes, suspects.modes(model.trainer))
        modes = {name: mode for name, mode in modes.items() if name in self.changed}  # training may change some, too
        found = {"modes": modes, "loaders": suspects.loaders(), "stray": names}
        stray = {plain(name): _words(now.seen[name], before.seen[name], words) for name in names[:MOST]}
        unseen = {plain(name): "is set in training and does not come back with the state" for name in self.forgotten}
        return {
            "stray": unseen | stray,
            "cause": plain(suspects.cause("used", False, {}, found)),
        }


def compare(mine: int, stored: int) -> dict[str, Any]:
    """Two states in files: the first leaf that differs, and what is different of the machine that made the stored one.

    The descriptors stay the caller's.
    """
    own, there = state_format.read(mine), state_format.read(stored)
    one, other = ({name: saved.get(name) for name in COMPARED} for saved in (there, own))
    return {
        "difference": plain(suspects.first_difference(suspects.leaves(one), suspects.leaves(other))),
        "elsewhere": inexact.others(there.get("machine", {}), own.get("machine", {})),
    }


def _words(now: Seen, before: Seen, where: str) -> str:
    is_told = now.shown and before.shown and now.shown != before.shown
    values = f": {now.shown} in a used object, {before.shown} {where}" if is_told else ""
    return f"does not come back with the state{values}"


def _modules(file: str) -> list[ModuleType]:
    """Those of the user's code that are imported."""
    imports = imports_of(Path(file).resolve())
    files = {str(imports.base / name) for name in imports.files}
    return [each for each in list(sys.modules.values()) if getattr(each, "__file__", None) in files]
