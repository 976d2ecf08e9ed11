"""The assignment of a chain: what its row tells the worker, as a typed value and as JSON.

The scheduler and the workers may run different versions, so an unknown format is `Unreadable` and not an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from app.domain.events import Stage, StoredPart
from app.domain.objectives import BestSoFar
from app.domain.slots import multi_machine_kind

NextStop = tuple[int, tuple[int, ...], tuple[int, ...]]
"""The next step whose state is needed; the evaluations up to there; and the ends of stages up to there."""

LentSlots = tuple[()] | tuple[tuple[str, ...]] | tuple[tuple[str, ...], Mapping[str, str]]

FORMAT = 1
"""Version of the JSON, since 0.1.0."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Unreadable:
    """An assignment in the format of another version. reason: a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoint that a chain begins with."""

    node: str
    step: int
    key: str
    sha256: str
    parts: tuple[StoredPart, ...] = ()  # as in `CheckpointKept`
    is_cached: bool = False
    """Whether the state is still on a disk of its host, and not in the store: see `CheckpointCached`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The state and the metrics that a verification must reproduce after `step` steps."""

    node: str
    step: int
    key: str
    """The object that holds the state; "" if none is kept, and only metrics are compared."""
    sha256: str
    since: int = 0
    """The step from which that state was trained without a break; 0 without a state."""
    metrics: Mapping[str, float | None] | None = None
    """The recorded metrics; None if they are not compared."""
    parts: tuple[StoredPart, ...] = ()

    @property
    def resume_point(self) -> ResumePoint:
        return ResumePoint(self.node, self.step, self.key, self.sha256, self.parts)


@dataclass(frozen=True, slots=True)
class VerificationOrder:
    """The comparisons that a chain must make."""

    kind: str
    """A `VerificationKind`."""
    comparisons: tuple[Comparison, ...] = ()
    """By step; empty for a `CHECK`."""
    most_steps: int = 0
    """A `CHECK` that would need more steps, and more than a moment, leaves out optional parts."""
    metrics: tuple[str, ...] = ()
    """The metrics that an evaluation must report."""
    ignored: tuple[str, ...] = ()
    """Non-tensor leaves of the state that evaluations change. The trial alone does not make these evaluations."""
    suspects: tuple[str, ...] = ()
    """Attributes that an earlier state did not restore: the likely cause of a difference."""
    origin: ResumePoint | None = None
    """A state on the path, for the torch version and device with which metrics without a state were measured."""


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class ChainAssignment:
    """The stages that a chain trains in a row, and how.

    The chain begins with the state at `resume`, with the weighted mean of the states in `mean`, or at step 0.
    """

    plan: str
    trainer: str
    trainer_version: str
    trainer_args: Mapping[str, Any]
    seed: int

    study: str
    """The study and trial under which the chain's log is stored."""
    trial: int
    hp: Mapping[str, Any]
    stages: tuple[Stage, ...]
    resume: ResumePoint | None

    intermediate_bytes: int = 0
    """Most bytes of checkpoints that the chain may keep inside its stages."""
    runtime_args: Mapping[str, Any] = field(default_factory=dict)
    determinism: str = "strict"

    branch_points: tuple[int, ...] = ()
    """Indices of the stages at whose ends other stages can begin."""
    branches_inside: tuple[tuple[int, ...], ...] = ()
    """For each stage, the steps inside it where known trials would branch off if they were extended."""

    packing: int = 0
    """Lanes of the pack that trains the chain; 0: it is trained alone."""
    pack: tuple[str, ...] = ()
    """The chains of that pack."""
    profile: bool = False
    """Whether packs of the plan are still to be measured on this kind of device."""
    measure: int = 0
    """Only measure packs of up to this many lanes, and train nothing; 0: train."""

    keep_at: tuple[int, ...] = ()
    """Steps at which the state is kept in any case, for a later comparison."""
    own_evaluations: tuple[int, ...] = ()
    """Steps at which the trial would be evaluated if it were trained alone."""
    keep_for_good: tuple[int, ...] = ()
    """Steps at which a study wants the state kept."""
    keep_best: tuple[BestSoFar, ...] = ()
    """The best result of each study that keeps the state of every better one."""

    alone: bool = False
    """Train in a fresh process and keep nothing inside stages."""
    proof: VerificationOrder | None = None
    """What to verify, if the chain trains nothing new."""

    begin: Mapping[str, Any] | None = None
    """Initial weights, at step 0: `key` and `sha256` of the object, and whether to take all of its `state`."""
    inputs: tuple[Mapping[str, Any], ...] = ()
    """As in `StudySubmitted`."""
    describe: bool = False
    """Whether the slot must report its environment."""
    patient: bool = False
    """Whether every step may take as long as the first one, because timings of other chains may not apply."""

    members: tuple[str, ...] = ()
    """Slots lent to the chain. The ranks are on the chain's own slot and on these, in this order."""
    shards: int = 0  # as in `PlanOpened`
    parallel: str = "tree"  # as in `PlanOpened`
    measures_ranks: Mapping[str, Any] | None = None
    """Only measure the powers of two of these devices, and train nothing; None: train. The hyper-parameters that decide
    the batch size of the measurement."""
    most_ranks: int = 1
    """How many devices the chain could get if these have too little memory."""
    meeting: Mapping[str, str] | None = None
    """For members on other machines: the `address` where the slot's worker waits for theirs, and a shared `secret`."""
    mean: tuple[tuple[ResumePoint, float], ...] = ()
    """States and their weights, whose mean the chain begins with."""

    most_fresh_seconds: float | None = None
    """If a fresh process takes longer to start, the chain may train in one that has trained another. None: never."""
    submitted_at: float = 0.0
    """When the study was submitted, in Unix time."""

    @property
    def ranks(self) -> int:
        return 1 + len(self.members)

    @property
    def lent_slots(self) -> LentSlots:
        """The slots lent to the chain and, on several machines, their meeting point; () for none."""
        return () if not self.members else (self.members,) if self.meeting is None else (self.members, self.meeting)

    def kind_on(self, device: str) -> str:
        """The kind under which the speed of the chain's devices is recorded."""
        return multi_machine_kind(device) if self.meeting else device

    @property
    def reads(self) -> tuple[ResumePoint, ...]:
        """The states to load before training: the checkpoint, the states of the mean, or the initial weights."""
        if self.resume is None and self.begin is not None:
            return (ResumePoint("", 0, self.begin["key"], self.begin["sha256"]),)
        return (self.resume,) if self.resume else tuple(point for point, _ in self.mean)

    def next_stop(self, step: int) -> NextStop:
        """The next stop after a step.

        A trial that is trained alone, or verified as a whole, does not stop at the ends of its stages.
        """
        if self.alone or (self.proof is not None and not self.reads):
            return self._next_stop_of_whole(step)
        number = next((n for n, stage in enumerate(self.stages) if step < stage.end), len(self.stages) - 1)
        stage, inside = self.stages[number], self.branches_inside[number : number + 1]
        stops = {*self.keep_at, *self.keep_for_good, *(inside[0] if inside else ())}
        stops |= set(stage.evaluate if self.keep_best else ())
        stop = min((each for each in stops if step < each < stage.end), default=stage.end)
        return stop, tuple(each for each in stage.evaluate if step <= each <= stop), ()

    def _next_stop_of_whole(self, step: int) -> NextStop:
        states = [each.step for each in self.proof.comparisons if each.key] if self.proof else []
        stop = min((each for each in [*states, *self.keep_for_good] if each > step), default=self.stages[-1].end)
        evaluated = tuple(each for stage in self.stages for each in stage.evaluate if step <= each <= stop)
        return stop, evaluated, tuple(stage.end for stage in self.stages if step < stage.end < stop)

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in FIELDS} | {"format": FORMAT}
        stages = [{name: getattr(stage, name) for name in STAGE_FIELDS} for stage in self.stages]
        values = {name: each and asdict(each) for name, each in (("resume", self.resume), ("proof", self.proof))}
        lists = {"keep_best": list(map(asdict, self.keep_best)), "mean": [[asdict(p), w] for p, w in self.mean]}
        return {**plain, **values, **lists, "stages": stages}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChainAssignment | Unreadable:
        version = data.get("format")
        if version != FORMAT:
            differs = f"a chain was assigned in format {version}, and this version reads format {FORMAT}"
            return Unreadable(f"{differs}: run the workers and the scheduler with the same version of stagetree")
        try:
            return cls._parse({name: value for name, value in data.items() if name != "format"})
        except (TypeError, KeyError) as error:
            return Unreadable(f"a chain was assigned in a form that is not format {version}: {error!r}")

    @classmethod
    def _parse(cls, fields: dict[str, Any]) -> ChainAssignment:
        fields["stages"] = tuple(Stage(**{**stage, "evaluate": tuple(stage["evaluate"])}) for stage in fields["stages"])
        for name in ("branch_points", "inputs", "pack", "members", "keep_at", "keep_for_good", "own_evaluations"):
            fields[name] = tuple(fields[name])
        fields["branches_inside"] = tuple(map(tuple, fields["branches_inside"]))
        fields["keep_best"] = tuple(map(BestSoFar.from_json, fields["keep_best"]))
        fields["resume"] = _parse_point(fields["resume"])
        fields["mean"] = tuple((ResumePoint(**_parse_parts(each)), weight) for each, weight in fields["mean"])
        fields["proof"] = _parse_verification(fields["proof"])
        return cls(**fields)


def _parse_parts(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**data, "parts": tuple(StoredPart(**part) for part in data["parts"])}


def _parse_point(data: Mapping[str, Any] | None) -> ResumePoint | None:
    return None if data is None else ResumePoint(**_parse_parts(data))


def _parse_verification(data: Mapping[str, Any] | None) -> VerificationOrder | None:
    if data is None:
        return None
    comparisons = tuple(Comparison(**_parse_parts(each)) for each in data["comparisons"])
    names = {name: tuple(data[name]) for name in ("metrics", "ignored", "suspects")}
    return VerificationOrder(**{**data, "comparisons": comparisons, "origin": _parse_point(data["origin"]), **names})


FIELDS = tuple(field.name for field in fields(ChainAssignment))
STAGE_FIELDS = tuple(field.name for field in fields(Stage))
