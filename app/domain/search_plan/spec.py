"""The spec of a study as the log holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from app.domain.objectives import OBJECTIVE_FIELDS, Objectives, read_objectives
from app.domain.terms import InexactPolicy
from stagetree.sequences.merging import merged_states

BUDGETS = ("max_total_steps", "max_slot_seconds")
"""The fields of a study file that limit its cost."""


@dataclass(frozen=True)
class StoredSpec:
    """A spec that was accepted at its submission, with the defaults of the fields that it leaves out.

    A field is named as in the study file. `json` is the spec as it was submitted.
    """

    json: dict[str, Any]
    name: str = ""
    trainer: str = ""
    trainer_args: Mapping[str, Any] = field(default_factory=dict)
    determinism: str = "strict"
    fresh_processes: str = "auto"
    runtime_args: Mapping[str, Any] = field(default_factory=dict)
    """The trainer's arguments that change no result."""
    shards: int = 0
    devices: tuple[str, ...] = ()
    """The kinds of device that may train the study. Empty for any; then a trial stays on its kind of GPU."""
    least_ranks: int = 1
    """Fewest slots that train a stage together."""
    most_ranks: int = 1
    """Most slots that train a stage together."""

    metric: str = ""
    mode: str = ""
    """`max` or `min`."""
    metrics: tuple[Mapping[str, Any], ...] = ()
    constraints: tuple[str, ...] = ()
    value: str = "last"
    """`last` or `best`: the result that a trial is ranked by."""
    space: Mapping[str, Any] | None = None
    """The search space; None if the study lists its configurations."""
    tuner: Mapping[str, Any] = field(default_factory=dict)
    """The tuner's fields in the study file: its `kind`, and the fields of that kind."""
    stop_hopeless: Mapping[str, Any] | None = None
    suggestions: tuple[dict[str, Any], ...] = ()
    seed: int = 0
    repeats: tuple[int, int | str] = (1, 0)
    """The number of repeats of each trial, and the step from which they differ, or `branch`. See `data_seeds`."""
    eval_every: int | None = None
    """Steps between regular evaluations; None to evaluate at requested steps only."""

    merge: bool = True
    """Whether trials share their common steps."""
    check: bool = True
    """Whether the trainer must pass a check before training."""
    audit: float = 0.02
    """The share of finished stages that idle slots train again for verification."""
    inexact: InexactPolicy = InexactPolicy.ALONE

    priority: float = 1.0
    """The priority class. Slots go to the studies of the highest class first."""
    weight: float = 1.0
    """The weight of its share of slots within its class."""
    max_slots: int | None = None
    """Most slots at once; None for any number."""
    max_restarts: int = 2
    """How often an error is tried again in a fresh process before the trial fails."""
    max_failures: int | None = None
    """How many trials may fail before the study fails; None for any number."""
    max_time: float | None = None
    max_total_steps: int | None = None
    max_slot_seconds: float | None = None
    target: float | None = None
    """The value of a result that ends the study; None for none."""
    target_at: str = "results"
    """`results` or `evaluations`: whether evaluations of `eval_every` reach the target, too."""

    keep_best: int = 1
    """How many of the best trials keep their final state."""
    keep_at: tuple[int, ...] = ()
    keep_every: int | None = None

    @classmethod
    def from_json(cls, json: dict[str, Any]) -> StoredSpec:
        typed = {name: read(json[name]) for name, read in _TYPED.items() if json.get(name) is not None}
        given = {name: json[name] for name in _AS_WRITTEN if json.get(name) is not None}
        return cls(json, **given, **typed, **_ranks(json.get("ranks", 1)))

    @property
    def kind(self) -> str:
        """The kind of its tuner."""
        return str(self.tuner.get("kind", ""))

    @property
    def requests_all_at_once(self) -> bool:
        """Whether its tuner requests all steps of each trial at once, independent of results."""
        return self.kind in ("trials", "grid", "random")

    @property
    def data_seeds(self) -> tuple[int, ...]:
        """The `data_seed` of each repeat: as listed, or the study's seed and the ones that follow it."""
        written = self.json.get("repeats")
        listed = written["seeds"] if isinstance(written, Mapping) else None
        return tuple(listed) if isinstance(listed, list) else tuple(self.seed + n for n in range(self.repeats[0]))

    @property
    def max_steps(self) -> int | None:
        """Most steps of a trial; None if the tuner does not have a limit."""
        return self.tuner.get("max_steps")

    @cached_property
    def objectives(self) -> Objectives:
        return read_objectives(self.json)

    @property
    def objective_fields(self) -> dict[str, Any]:
        """The fields of the study file that `objectives` is made of."""
        return {name: self.json[name] for name in OBJECTIVE_FIELDS if self.json.get(name)}

    @property
    def budgets(self) -> dict[str, float]:
        """The most steps and the most slot seconds, by the name of the field, where they are limited."""
        return {name: most for name in BUDGETS if (most := getattr(self, name)) is not None}

    @property
    def evaluations_reach_target(self) -> bool:
        """Whether the study ends once an evaluation is as good as its target."""
        return self.target is not None and self.target_at == "evaluations"

    @property
    def keeps_states(self) -> bool:
        """Whether `keep_at` or `keep_every` keeps states of all trials."""
        return bool(self.keep_at or self.keep_every)

    @property
    def merges_at_rungs(self) -> bool:
        """Whether its trials are ranked by the means of their last states."""
        return "merge" in (self.tuner.get("rung_value") or {})

    def merged_steps(self, rung: int) -> list[int]:
        """The steps of the states of which a trial's value at the rung of `rung` steps is the mean."""
        return [step for step, _ in merged_states(self.tuner["rung_value"], rung)] if self.merges_at_rungs else []

    def evaluates(self, step: int) -> bool:
        """Whether `eval_every` asks for an evaluation at this step."""
        return self.eval_every is not None and step % self.eval_every == 0


def _ranks(written: int | Mapping[str, int]) -> dict[str, Any]:
    least, most = (written["least"], written["most"]) if isinstance(written, Mapping) else (written, written)
    return {"least_ranks": least, "most_ranks": most}


def _repeats(written: int | Mapping[str, Any]) -> tuple[int, int | str]:
    if not isinstance(written, Mapping):
        return written, 0
    return len(seeds) if isinstance(seeds := written["seeds"], list) else seeds, written["from"]


_TYPED: dict[str, Callable[[Any], Any]] = {
    "repeats": _repeats,
    "space": lambda written: written or None,
    "inexact": InexactPolicy,
    **dict.fromkeys(("audit", "priority", "weight"), float),
    **dict.fromkeys(("devices", "metrics", "constraints", "suggestions", "keep_at"), tuple),
}
_AS_WRITTEN = {*StoredSpec.__dataclass_fields__} - {"json", "least_ranks", "most_ranks", *_TYPED}
