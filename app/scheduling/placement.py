"""The choice of a slot for a chain, and the chain's assignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.domain import checkpoint_needs, inputs
from app.domain.accounting import steps_left
from app.domain.chain_assignment import ChainAssignment, ResumePoint
from app.domain.events import PlanOpened, Stage
from app.domain.outstanding_requests import evaluations, evaluations_by_part
from app.domain.search_plan import Node, SearchPlan, Study, Trial
from app.domain.slots import SlotDescription, gpu_of, matches_device, shared_gpu, verification_device
from app.domain.terms import Refused, StudyId, TrialKey
from app.scheduling.frontier import Frontier, Span


def stages_of(plan: SearchPlan, spans: Sequence[Span]) -> tuple[Stage, ...]:
    """The stages of a chain, charged to the study of its lead trial."""
    study, _ = lead_trial(plan, spans[-1])
    return tuple(
        Stage(node=span.node, start=span.start, end=span.end, study=study, evaluate=tuple(steps))
        for span, steps in zip(spans, evaluations_by_part(plan, spans), strict=True)
    )


def lead_trial(plan: SearchPlan, span: Span) -> TrialKey:
    """The first waiting trial of the most important study: a chain that ends with `span` runs for this trial.

    All trials that share the chain's stages have the same values there. If the span was chosen for a study, the trial
    belongs to that study, if possible. Raises `Refused` if no trial waits any more.
    """
    node = plan.nodes[span.node]
    if not (waiting := [*_waiting_below(plan, node, span.end, span.study)] or [*_waiting_below(plan, node, span.end)]):
        raise Refused(f"no trial waits for step {span.end} any more")
    return min(waiting, key=lambda key: (-plan.studies[key[0]].spec.priority, key))


def cut_to_budget(plan: SearchPlan, paths: Sequence[Sequence[Span]]) -> list[list[Span]]:
    """Cut the paths to the step budgets of the studies that pay for them. Paths without budget are left out."""
    shortened, left = list[list[Span]](), dict[StudyId, float]()
    for path in paths:
        payer, _ = lead_trial(plan, path[-1])
        left.setdefault(payer, steps_left(plan, plan.studies[payer]))
        affordable = list(_cut_to_steps(path, left[payer], payer))
        left[payer] -= sum(span.end - span.start for span in affordable)
        shortened += [affordable] if affordable else []
    return shortened


def _cut_to_steps(path: Sequence[Span], steps: float, payer: StudyId) -> Iterator[Span]:
    """The first `steps` steps of a path. A cut span stays with the payer."""
    if sum(span.end - span.start for span in path) <= steps:
        yield from path
        return
    for span in path:
        end = min(span.end, span.start + int(steps))
        if end > span.start:
            yield replace(span, end=end, study=payer)
        steps -= end - span.start


def _waiting_below(plan: SearchPlan, node: Node, step: int, study: StudyId | None = None) -> Iterable[TrialKey]:
    """The trials of running studies, or of one study, that wait for `step` in the node, or else for a later step."""

    def running_keys(keys: Iterable[TrialKey]) -> list[TrialKey]:
        return [key for key in keys if plan.studies[key[0]].is_running and study in (None, key[0])]

    if here := running_keys(node.waiting.get(step, ())):
        return here
    for below in plan.nodes_after(node, step - 1):
        at_last = (keys for at, keys in below.waiting.items() if at > step or below is not node)
        if later := running_keys(key for keys in at_last for key in keys):
            return later
    return ()


def assign(
    frontier: Frontier, spans: Sequence[Span], stages: tuple[Stage, ...], intermediate_bytes: int, **how: Any
) -> ChainAssignment:
    """The assignment of a chain of these spans, which must be trained as `stages`. how: fields of `ChainAssignment`."""
    plan, is_alone = frontier.plan, frontier.plan.nodes[spans[0].node].is_isolated
    trial = plan.trial(lead_trial(plan, spans[-1]))
    return replace(
        base_assignment(frontier, trial, stages, resume_point(plan, spans[0]), start_mean(plan, spans[0])),
        hp=_chain_hp(plan, trial, spans[-1]),
        inputs=inputs.watched_files(plan, plan.studies[trial.study]),
        intermediate_bytes=0 if is_alone else intermediate_bytes,
        keep_for_good=tuple(
            step for s in spans for step in checkpoint_needs.steps_to_keep(plan, s.node, s.start, s.end)
        ),
        keep_best=checkpoint_needs.best_so_far(plan, [span.node for span in spans], spans[0].start),
        own_evaluations=_own_evaluations(plan, trial, stages),
        alone=is_alone,
        patient=_is_patient(plan, trial, spans),
        most_fresh_seconds=frontier.most_fresh_seconds(spans),
        branch_points=branch_points(frontier, spans),
        branches_inside=tuple(frontier.upcoming.branch_steps(span.node, span.start, span.end) for span in spans),
        **{"packing": plan.packing or 0} | how,
    )


def _own_evaluations(plan: SearchPlan, trial: Trial, stages: Sequence[Stage]) -> tuple[int, ...]:
    """The evaluations that the trial would have alone, and the one at the chain's end, where training stops."""
    study, end = plan.studies[trial.study], stages[-1].end
    steps = (step for stage in stages for step in stage.evaluate)
    return tuple(step for step in steps if step == end or study.spec.evaluates(step) or step in trial.requested_steps)


def _chain_hp(plan: SearchPlan, trial: Trial, span: Span) -> Mapping[str, Any]:
    """The hyper-parameters of a chain for a trial that ends with `span`.

    A trial with an average may need a source trained again whose nodes it does not pass. Then the values come from
    another trial that passes the node to the span's end.
    """
    if span.node in trial.path:
        return trial.runs[0].hp
    others = (each for study in plan.studies.values() for each in study.trials if span.node in each.passes)
    for each in [trial] if span.node in trial.passes else others:
        if any(name == span.node and end >= span.end for name, end in plan.path_ends(each)):
            return each.run_through(span.node).hp
    return plan.nodes[span.node].hp


def _is_patient(plan: SearchPlan, trial: Trial, spans: Sequence[Span]) -> bool:
    """Whether slow steps must not count as a hang: after earlier failures, or if a failure would not be retried."""
    return not plan.studies[trial.study].spec.max_restarts or any(plan.nodes[span.node].failures for span in spans)


def base_assignment(
    frontier: Frontier,
    trial: Trial,
    stages: tuple[Stage, ...],
    resume: ResumePoint | None,
    mean: tuple[tuple[ResumePoint, float], ...] = (),
) -> ChainAssignment:
    """The assignment of these stages with one trial's values, from a state, from a mean of states or from step 0."""
    plan, study = frontier.plan, frontier.plan.studies[trial.study]
    assert plan.opened is not None
    return ChainAssignment(
        plan=frontier.id,
        trainer=plan.opened.trainer,
        trainer_version=plan.opened.trainer_version,
        trainer_args=plan.opened.trainer_args,
        seed=plan.opened.seed,
        determinism=plan.opened.determinism,
        shards=plan.opened.shards,
        parallel=plan.opened.parallel,
        study=study.id,
        trial=trial.number,
        hp=dict(trial.run_through(stages[-1].node).hp),
        stages=stages,
        resume=resume,
        mean=mean,
        runtime_args=study.spec.runtime_args,
        submitted_at=study.submitted_at,
        begin=None if resume or mean else initial_weights(plan, study),
    )


def initial_weights(plan: SearchPlan, study: Study) -> dict[str, Any] | None:
    """The initial weights of a chain at step 0; None if the study has none."""
    if study.begin is None:
        return None
    return {name: study.begin[name] for name in ("key", "sha256", "state")}


def branch_points(frontier: Frontier, spans: Sequence[Span]) -> tuple[int, ...]:
    """The indices of the spans at whose ends other stages can begin, besides the next one of the chain."""
    last = len(spans) - 1
    return tuple(at for at, children in enumerate(frontier.children(spans)) if children > (at < last))


def resume_point(plan: SearchPlan, first: Span) -> ResumePoint | None:
    """The checkpoint that a chain begins with; None for step 0 and for a mean of several."""
    node, step = plan.start_node(plan.nodes[first.node], first.start), first.start
    return None if node is None else _point(node, step)


def start_mean(plan: SearchPlan, first: Span) -> tuple[tuple[ResumePoint, float], ...]:
    """The states and weights of the mean that a chain begins with; () without a mean."""
    if plan.nodes[first.node].is_available(first.start):
        return ()
    return tuple((_point(plan.nodes[name], step), weight) for name, step, weight in plan.means.get(first.node, ()))


def _point(node: Node, step: int) -> ResumePoint:
    checkpoint, is_cached = node.state_at(step), step in node.cached and step not in node.checkpoints
    return ResumePoint(node.id, step, checkpoint.key, checkpoint.sha256, checkpoint.parts, is_cached)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The healthy slots, by name, and the free ones among them."""

    healthy: Sequence[SlotDescription]
    free: Sequence[SlotDescription]

    def excluding(self, taken: Container[str]) -> Candidates:
        """The same candidates with these slots no longer free."""
        return Candidates(self.healthy, [slot for slot in self.free if slot.name not in taken])


def has_trainer(slot: SlotDescription, opened: PlanOpened) -> bool:
    """Whether the slot has the plan's trainer at its version. A slot that has not reported its trainers has none."""
    return slot.trainers.get(opened.trainer) == opened.trainer_version


def group_by_kind(
    plan: SearchPlan, slots: Candidates, is_wanted: Callable[[str], bool] = lambda kind: True
) -> list[tuple[str, Candidates]]:
    """The slots that may verify a plan, by kind of device, for the wanted kinds with a free slot."""
    opened = plan.opened
    allowed = [study.spec.devices for study in plan.studies.values() if study.is_running or study.is_audited]

    def able(some: Sequence[SlotDescription], kind: str) -> list[SlotDescription]:
        mine = (slot for slot in some if verification_device(slot) == kind and opened and has_trainer(slot, opened))
        return [slot for slot in mine if any(matches_device(slot.kind, devices) for devices in allowed)]

    kinds = filter(is_wanted, dict.fromkeys(map(verification_device, slots.free)))
    groups = [(kind, Candidates(able(slots.healthy, kind), able(slots.free, kind))) for kind in kinds]
    return [(kind, some) for kind, some in groups if some.free]


def missing_trainer_text(opened: PlanOpened, slots: Sequence[SlotDescription]) -> str:
    """The message that no slot has the plan's trainer at its version."""
    versions = sorted({slot.trainers[opened.trainer] for slot in slots if opened.trainer in slot.trainers})
    has = f"they have it at version {', '.join(versions)}" if versions else "they do not have it at any version"
    return f"no slot has trainer {opened.trainer} at version {opened.trainer_version}: {has}"


def place(
    plan: SearchPlan, id: str, spans: Sequence[Span], resume: ResumePoint | None, slots: Candidates
) -> SlotDescription | None:
    """The free slot that takes these spans in a row; None if they must wait for another slot.

    The slot must have the trainer. A slot where the user's code has failed in these nodes is avoided, even if another
    one is not free yet: its device may be broken without any self-test finding it. If the code has failed on all slots,
    the slots with the fewest failures count. Among several, a slot with the model in memory comes first, then one on
    the GPU with the fewest busy slots.
    """
    model = resume and {"plan": id, "node": resume.node, "step": resume.step}
    resident = [slot for slot in slots.free if slot.resident_model == model] if model else []
    best = next(leaders(plan, spans, Candidates(slots.healthy, resident)), None)
    return best or _least_loaded(leaders(plan, spans, slots), slots)


def leaders(plan: SearchPlan, spans: Sequence[Span], slots: Candidates) -> Iterator[SlotDescription]:
    """The free slots that may lead a chain of these spans: able ones with the fewest failures."""
    failed, free = _failures(plan, spans), able_slots(plan, spans, slots.free)
    if not failed:
        return free
    least = min((failed[slot.name] for slot in able_slots(plan, spans, slots.healthy)), default=0)
    return (slot for slot in free if failed[slot.name] <= least)


def able_slots(plan: SearchPlan, spans: Sequence[Span], slots: Iterable[SlotDescription]) -> Iterator[SlotDescription]:
    """The slots with the plan's trainer whose device may train these spans and whose host can load their state.

    A trial stays on the kind of GPU that trained its state, unless its study names several kinds. A state that is not
    in the store yet is on one host.
    """
    assert plan.opened is not None
    opened, study = plan.opened, plan.studies[spans[0].study or lead_trial(plan, spans[-1])[0]]
    first, devices = (plan.nodes[spans[0].node], spans[0].start), study.spec.devices
    before, host = "" if len(devices) > 1 else plan.gpu_at(*first), plan.required_host(*first)
    able = (slot for slot in slots if has_trainer(slot, opened) and matches_device(slot.kind, devices))
    able = (slot for slot in able if not host or slot.host == host)
    return (slot for slot in able if not before or gpu_of(slot.kind) in ("", before))


def _least_loaded(free: Iterable[SlotDescription], slots: Candidates) -> SlotDescription | None:
    """The first slot on the GPU with the fewest busy slots, so that shared GPUs fill evenly."""
    first = list[SlotDescription]()
    for slot in free:
        first.append(slot)
        if shared_gpu(slot.name) is None:
            break  # a slot with a GPU of its own has no busy neighbours, so no later one is better
    if len(first) < 2:
        return next(iter(first), None)
    idle = {slot.name for slot in slots.free}
    busy = Counter(shared_gpu(slot.name) for slot in slots.healthy if slot.name not in idle)
    busy[None] = 0
    return min(first, key=lambda slot: busy[shared_gpu(slot.name)])


def _failures(plan: SearchPlan, spans: Sequence[Span]) -> Counter[str]:
    """How often the user's code failed on each slot in the nodes of a chain, since their last completed stage."""
    failures = [plan.nodes[name].failures for name in {span.node for span in spans}]
    counts = Counter(slot for each in failures for slots in each.values() for slot in slots)
    counts.update(slot for span in spans for slot in _failed_evaluation_slots(plan, span))
    return counts


def _failed_evaluation_slots(plan: SearchPlan, span: Span) -> Iterator[str]:
    """The slots where a still outstanding evaluation of these steps failed, once for each failure."""
    node = plan.nodes[span.node]
    failed_steps = evaluations(plan, node, span.start, span.end) if node.evaluation_failures else ()
    for (step, _), slots in node.evaluation_failures.items():
        yield from slots if step in failed_steps else ()
