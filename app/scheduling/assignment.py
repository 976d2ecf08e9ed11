"""What a chain's row tells its worker, which reads nothing else: a typed value, and its JSON with a version.

A live chain's row may be read by a process of another version: a form that is not known is passed over, not failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from app.domain.events import Stage
from app.domain.ids import TrialKey
from app.domain.search_plan import Node, SearchPlan, Study, Trial
from app.scheduling.evaluations import evaluations_of_each
from app.scheduling.frontier import Frontier, Span


def stages_of(plan: SearchPlan, spans: Sequence[Span]) -> tuple[Stage, ...]:
    """The stages of a chain, charged to the study of its lead trial."""
    study, _ = lead_trial(plan, spans[-1])
    return tuple(
        Stage(node=span.node, start=span.start, end=span.end, study=study, evaluate=tuple(steps))
        for span, steps in zip(spans, evaluations_of_each(plan, spans), strict=True)
    )


def lead_trial(plan: SearchPlan, span: Span) -> TrialKey:
    """The trial on whose behalf a chain that ends with `span` runs: of the most important study, the first.

    Every trial that shares the chain's stages has the same values there, so its values serve them all. Where the span
    was chosen for a study, it is one of that study's.
    """
    waiting = list(_waiting_below(plan, plan.nodes[span.node], span.end))
    waiting = [key for key in waiting if key[0] == span.study] or waiting
    return min(waiting, key=lambda key: (-plan.studies[key[0]].priority, key))


def _waiting_below(plan: SearchPlan, node: Node, step: int) -> Iterable[TrialKey]:
    """The trials of running studies that wait for a result at `step` in the node, or else for one beyond it."""
    here = [key for key in node.waiting.get(step, ()) if _runs(plan, key)]
    if here:
        return here
    for found in plan.beyond(node, step - 1):
        later = [key for at, keys in found.waiting.items() if at > step for key in keys if _runs(plan, key)]
        if later:
            return later
    return ()


def _runs(plan: SearchPlan, key: TrialKey) -> bool:
    return plan.studies[key[0]].is_running


FORMAT = 7
READABLE = (2, 3, 4, 5, 6, FORMAT)
"""Of the JSON. 1 had no number, `spare_bytes`, and neither runtime arguments nor determinism; 2 no branch points, 3
none inside stages, 4 no packs, 5 no measuring, 6 no proofs, no weights to begin with and no inputs."""


class UnknownFormat(Exception):
    """The row was written by another version, in a form that this one cannot read."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoint at which a chain begins."""

    node: str
    step: int
    key: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """After `step` steps the state must be that under `key`, whose hash that is, and the metrics these.

    since: the step from which it was trained without a break. metrics: those on record, None where there are none.
    """

    node: str
    step: int
    key: str
    sha256: str
    since: int = 0
    metrics: Mapping[str, float | None] | None = None


@dataclass(frozen=True, slots=True)
class ProofOrder:
    """What a chain is to prove: see `ProofKind`.

    comparisons: in the order of their steps, none for a `CHECK`. most_steps: a check that costs more steps in all than
    that, and takes more than a moment, leaves out what it can. metrics: those that an evaluation must report.
    """

    kind: str
    comparisons: tuple[Comparison, ...] = ()
    most_steps: int = 0
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAssignment:
    """Train these stages in a row, from `resume` or from step 0, with the values of `hp`.

    study, trial: on whose behalf it runs; its log is kept under them. intermediate_bytes: how much the chain may keep
    in checkpoints inside its stages. branch_points: the numbers of the stages at whose ends others wait to begin.
    branches_inside: for each stage, the steps inside it at which known trials would branch off if they went on.
    packing: how many lanes the pack has in which it is trained, 0 where it is trained alone. pack: the chains of it.
    profile: whether nobody knows yet how packs of the plan do on the slot's kind of device. measure: only see how packs
    do that have up to so many lanes, and train nothing; 0 is to train. keep_at: steps inside the stages at which the
    state is kept in any case, to be compared later. alone: whether it is trained in a fresh process, and nothing kept
    inside it for an accident. proof: what it is to prove, if it trains nothing new.
    begin: of a chain that begins at step 0 with weights, where they are (`key`, `sha256`) and whether all of that
    `state` is taken. inputs: as in `StudySubmitted`. describe: whether the slot is to say what it trains with.
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
    alone: bool = False
    proof: ProofOrder | None = None
    begin: Mapping[str, Any] | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    describe: bool = False

    @property
    def first_read(self) -> ResumePoint | None:
        """What is read of the store before the chain trains: its checkpoint, or the weights that it begins with."""
        if self.resume is None and self.begin is not None:
            return ResumePoint("", 0, self.begin["key"], self.begin["sha256"])
        return self.resume

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in FIELDS}
        stages = [{name: getattr(stage, name) for name in STAGE_FIELDS} for stage in self.stages]
        values = {"resume": self.resume and asdict(self.resume), "proof": self.proof and asdict(self.proof)}
        return {"format": FORMAT, **plain, "stages": stages, **values}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChainAssignment:
        """Raises `UnknownFormat`."""
        fields = dict(data)
        if (version := fields.pop("format", 1)) not in READABLE:
            raise UnknownFormat(f"a chain was assigned in format {version}; this version reads format {FORMAT}")
        fields["stages"] = tuple(Stage(**{**stage, "evaluate": tuple(stage["evaluate"])}) for stage in fields["stages"])
        fields["branch_points"] = tuple(fields.get("branch_points", ()))
        fields["branches_inside"] = tuple(map(tuple, fields.get("branches_inside", ())))
        fields["inputs"] = tuple(fields.get("inputs", ()))
        fields["pack"] = tuple(fields.get("pack", ()))
        fields["resume"] = fields["resume"] and ResumePoint(**fields["resume"])
        fields["keep_at"] = tuple(fields.get("keep_at", ()))
        fields["proof"] = _proof(fields.get("proof"))
        return cls(**fields)


def _proof(data: Mapping[str, Any] | None) -> ProofOrder | None:
    if data is None:
        return None
    comparisons = tuple(Comparison(**each) for each in data["comparisons"])
    return ProofOrder(**{**data, "comparisons": comparisons, "metrics": tuple(data["metrics"])})


FIELDS = tuple(field.name for field in fields(ChainAssignment))
STAGE_FIELDS = tuple(field.name for field in fields(Stage))


def assign(
    frontier: Frontier, spans: Sequence[Span], stages: tuple[Stage, ...], intermediate_bytes: int
) -> ChainAssignment:
    """The assignment of a chain of these spans, which are to be trained as `stages`."""
    plan, is_alone = frontier.plan, frontier.plan.nodes[spans[0].node].alone
    trial = plan.trial(lead_trial(plan, spans[-1]))
    return replace(
        assignment_of(frontier, trial, stages, resume_point(plan, spans[0])),
        packing=plan.packing or 0,
        inputs=tuple(plan.studies[trial.study].inputs),
        intermediate_bytes=0 if is_alone else intermediate_bytes,
        alone=is_alone,
        branch_points=branch_points(frontier, spans),
        branches_inside=tuple(frontier.upcoming.inside(span.node, span.start, span.end) for span in spans),
    )


def assignment_of(
    frontier: Frontier, trial: Trial, stages: tuple[Stage, ...], resume: ResumePoint | None
) -> ChainAssignment:
    """These stages as one trial's values train them, from a state or from step 0."""
    plan, study = frontier.plan, frontier.plan.studies[trial.study]
    assert plan.opened is not None
    return ChainAssignment(
        plan=frontier.id,
        trainer=plan.opened.trainer,
        trainer_version=plan.opened.trainer_version,
        trainer_args=plan.opened.trainer_args,
        seed=plan.opened.seed,
        determinism=plan.opened.determinism,
        study=study.id,
        trial=trial.number,
        hp=trial.hp,
        stages=stages,
        resume=resume,
        begin=None if resume else begin_of(plan, study),
        runtime_args=study.spec.get("runtime_args", {}),
    )


def begin_of(plan: SearchPlan, study: Study) -> dict[str, Any] | None:
    """What a chain at step 0 begins with. A study on a plan that begins with weights says where they are."""
    if study.begin is None:
        return None
    return {name: study.begin[name] for name in ("key", "sha256", "state")}


def branch_points(frontier: Frontier, spans: Sequence[Span]) -> tuple[int, ...]:
    """The numbers of the spans at whose ends other stages can begin than the next one of the chain."""
    last = len(spans) - 1
    return tuple(at for at, children in enumerate(frontier.children(spans)) if children > (at < last))


def resume_point(plan: SearchPlan, first: Span) -> ResumePoint | None:
    """The checkpoint at which a chain begins; None for step 0."""
    node = plan.nodes[first.node]
    if first.start not in node.resumable:
        if node.parent is None:
            return None
        node = plan.nodes[node.parent]
    checkpoint = node.checkpoints[first.start]
    return ResumePoint(node.id, first.start, checkpoint.key, checkpoint.sha256)
