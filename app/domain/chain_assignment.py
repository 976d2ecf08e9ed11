"""A unit of work and its slot: what a chain's row tells its worker, as a typed value and JSON; and slots.

A live chain's row may be read by a process of another version: a form that is not known is passed over, not failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any, Protocol

from app.domain.events import Stage, StoredPart
from app.domain.objectives import BestSoFar

Ahead = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Where the state of a model is wanted next; up to there, the steps at which it is evaluated, and those it passes."""

LentSlots = tuple[()] | tuple[tuple[str, ...]] | tuple[tuple[str, ...], Mapping[str, str]]

FORMAT = 1
"""Of the JSON, since 0.1.0."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The assignment of a row that another version wrote, in a form that this one cannot read. reason: a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoint at which a chain begins. parts: as in `CheckpointKept`. is_cached: as in `CheckpointCached`."""

    node: str
    step: int
    key: str
    sha256: str
    parts: tuple[StoredPart, ...] = ()
    is_cached: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """After `step` steps the state must be that under `key`, whose hash that is, and the metrics these.

    key: empty where no state is kept: then only metrics are compared. since: the step from which it was trained without
    a break; 0 of metrics alone. metrics: those on record, None where they are not compared.
    """

    node: str
    step: int
    key: str
    sha256: str
    since: int = 0
    metrics: Mapping[str, float | None] | None = None
    parts: tuple[StoredPart, ...] = ()

    @property
    def resume_point(self) -> ResumePoint:
        """Where the state is kept."""
        return ResumePoint(self.node, self.step, self.key, self.sha256, self.parts)


@dataclass(frozen=True, slots=True)
class VerificationOrder:
    """What a chain is to prove: see `VerificationKind`.

    comparisons: in the order of their steps, none for a `CHECK`. most_steps: a check that costs more steps in all than
    that, and takes more than a moment, leaves out what it can. metrics: those that an evaluation must report. suspects:
    what did not come back with a state before, the likely cause of a difference. ignored: leaves of the state, other
    than tensors, that evaluations change which the trial alone does not make. origin: a state
    on its way, which tells under which torch and on which device metrics without a state were measured.
    """

    kind: str
    comparisons: tuple[Comparison, ...] = ()
    most_steps: int = 0
    metrics: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    origin: ResumePoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAssignment:
    """Train these stages in a row, from `resume`, from the `mean` of states by their weights, or from step 0.

    study, trial: its log is kept under them. intermediate_bytes: how much the chain may keep in checkpoints inside its
    stages. branch_points: the numbers of the stages at whose ends others wait to begin.
    branches_inside: for each stage, the steps inside it at which known trials would branch off if they went on.
    packing: how many lanes the pack has in which it is trained, 0 where it is trained alone. pack: the chains of it.
    profile: whether nobody knows yet how packs of the plan do on the slot's kind of device. measure: only see how packs
    do that have up to so many lanes, and train nothing; 0 is to train. keep_at: steps at which the
    state is kept in any case, to be compared later. own_evaluations: the steps at which the trial alone is evaluated.
    keep_for_good: those at which a study wants it. keep_best: of those
    that want it where a result beats these. alone: whether it is trained in a fresh process, and nothing kept inside it
    for an accident. proof: what it is to prove, if it trains nothing new. begin: of a chain that begins at step 0 with
    weights, where they are (`key`, `sha256`) and whether all of that `state` is taken. inputs: as in `StudySubmitted`.
    describe: whether the slot is to say what it trains with. patient: whether each step may take as long as the first
    one may, since what is learnt from others may not fit. members: the slots that are lent to it: it is trained by a
    rank on the slot's device, and one on that of each, in this order. shards, parallel: as in `PlanOpened`.
    measures_ranks: only see how fast the powers of two of these devices are on batches that these hyper-parameters
    decide, and train nothing; None is to train. most_ranks: so many devices it could have if these had too little
    memory. meeting: where its members are on other machines, the `address` at which the worker of its slot awaits
    theirs, and the `secret` by which it knows them. most_fresh_seconds: where the start of a fresh process takes
    longer, it may train in one that has trained another chain; None: never. submitted_at: of the
    study, Unix time.
    """

    plan: str
    trainer: str
    trainer_version: str
    trainer_args: Mapping[str, Any]
    seed: int
    study: str
    trial: int
    hp: Mapping[str, Any]
    stages: tuple[Stage, ...]
    resume: ResumePoint | None
    intermediate_bytes: int = 0
    runtime_args: Mapping[str, Any] = field(default_factory=dict)
    determinism: str = "strict"
    branch_points: tuple[int, ...] = ()
    branches_inside: tuple[tuple[int, ...], ...] = ()
    packing: int = 0
    pack: tuple[str, ...] = ()
    profile: bool = False
    measure: int = 0
    keep_at: tuple[int, ...] = ()
    own_evaluations: tuple[int, ...] = ()
    keep_for_good: tuple[int, ...] = ()
    keep_best: tuple[BestSoFar, ...] = ()
    alone: bool = False
    proof: VerificationOrder | None = None
    begin: Mapping[str, Any] | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    describe: bool = False
    patient: bool = False
    members: tuple[str, ...] = ()
    shards: int = 0
    parallel: str = "tree"
    measures_ranks: Mapping[str, Any] | None = None
    most_ranks: int = 1
    meeting: Mapping[str, str] | None = None
    mean: tuple[tuple[ResumePoint, float], ...] = ()
    most_fresh_seconds: float | None = None
    submitted_at: float = 0.0

    @property
    def ranks(self) -> int:
        return 1 + len(self.members)

    @property
    def lent_slots(self) -> LentSlots:
        """The slots that are lent to it, and where to meet them on other machines; () for none."""
        return () if not self.members else (self.members,) if self.meeting is None else (self.members, self.meeting)

    def kind_on(self, device: str) -> str:
        """How its devices, of that kind, are called where it goes by their speed."""
        return multi_machine_kind(device) if self.meeting else device

    @property
    def reads(self) -> tuple[ResumePoint, ...]:
        """The states read of the store before the chain trains: its checkpoint, all states of its mean, or the
        weights that it begins with.
        """
        if self.resume is None and self.begin is not None:
            return (ResumePoint("", 0, self.begin["key"], self.begin["sha256"]),)
        return (self.resume,) if self.resume else tuple(point for point, _ in self.mean)

    def ahead(self, step: int) -> Ahead:
        """What comes after a step within its stage, as far as was known when the chain was made.

        A trial that is trained alone, or again as a whole, passes the ends of its stages without a break.
        """
        if self.alone or (self.proof is not None and not self.reads):
            return self._whole_ahead(step)
        number = next((n for n, stage in enumerate(self.stages) if step < stage.end), len(self.stages) - 1)
        stage, inside = self.stages[number], self.branches_inside[number : number + 1]
        stops = {*self.keep_at, *self.keep_for_good, *(inside[0] if inside else ())}
        stops |= set(stage.evaluate if self.keep_best else ())
        stop = min((each for each in stops if step < each < stage.end), default=stage.end)
        return stop, tuple(each for each in stage.evaluate if step <= each <= stop), ()

    def _whole_ahead(self, step: int) -> Ahead:
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


NAME = re.compile(r"(?P<gpu>(?P<site>.*[-_.])?gpu(?P<number>\d+))(?P<share>[a-z]?)|(?P<cpus>.*[-_.])?cpu\d+")
"""gpu0, cpu3, or with a host, host-gpu0; behind "gpu" is the CUDA device. Slots that share one: gpu0a, gpu0b."""

MOST_SHARES = 26

MOST_NAMES = 4096
"""Whose parts are remembered: each slot's are looked at whenever one is given work."""


@lru_cache(maxsize=MOST_NAMES)
def shared_gpu(slot: str) -> str | None:
    """The GPU of which a slot is a share, by the name that it would have as one slot; None of a slot that is none."""
    matched = NAME.fullmatch(slot)
    return matched["gpu"] if matched and matched["share"] else None


def site(slot: str) -> str:
    """The name of a slot without its device: a worker sees the devices of slots of its site."""
    matched = NAME.fullmatch(slot)
    return slot if matched is None else matched["site"] or matched["cpus"] or ""


def verification_device(slot: SlotDescription) -> str:
    """The kind of device on which a slot proves a trainer for all that are alike."""
    return slot.kind or slot.device


def multi_machine_kind(kind: str) -> str:
    """The kind of gangs on several machines, whose speed is another one."""
    return f"{kind}, several machines"


UNKNOWN_GPUS = frozenset({"", "cpu", "gpu"})
WORDS = re.compile("[a-z0-9]+")


def gpu_of(kind: str) -> str:
    """The kind of GPU of a slot of this kind, also of a share of one; "" for none, or an unknown one."""
    gpu = kind.partition(",")[0]  # behind it comes something special of the slot, or of its gang
    return "" if gpu.lower() in UNKNOWN_GPUS else gpu


def matches_device(kind: str, devices: Sequence[str]) -> bool:
    """Whether a kind of device is named by one of these, word by word: H100 names NVIDIA H100 80GB HBM3, L4 no L40S.

    None of them name any.
    """
    return not devices or any(_words(kind) >= _words(device) for device in devices)


@lru_cache(maxsize=MOST_NAMES)
def _words(text: str) -> frozenset[str]:
    return frozenset(WORDS.findall(text.lower()))


class SlotDescription(Protocol):
    """One GPU, or one CPU process. device: in words. chain: what it is at.

    trainers: the version that it has of each, by name. host, kind: the slots of one machine and of one kind of device
    may train one trial together. address: where workers of other machines reach its own; "" where they do not.
    """

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def chain(self) -> str | None: ...
    @property
    def resident_model(self) -> Mapping[str, Any] | None: ...
    @property
    def trainers(self) -> Mapping[str, str]: ...
