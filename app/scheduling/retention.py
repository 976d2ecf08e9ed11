"""Which checkpoints to delete when there are too many: the cheapest to train again for their size.

TreeML §4.2.2 keeps checkpoints at branch points and inside stages in one cache and evicts by "a cost-benefit ratio,
proposed in Nectar"; it gives no equation of its own. Nectar's (OSDI 2010, §3.4) is S * dT / (N * M): size, time since
the last use, number of uses, and machine time to produce it. The largest ratio is evicted first. We know which trials
may still resume, which is better than the time since the last use, so the value of a checkpoint is

    value = N * M / S

M: seconds to train it again from the last remaining checkpoint before it. N: the trials that may resume from it,
weighted by rank: the best counts as one, the last of 100 as a hundredth. S: bytes. The checkpoint with the smallest
value is deleted first. Its trials then count for the checkpoint before it, and its seconds for the next ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import count

from app.domain import checkpoint_needs, results
from app.domain.search_plan import Node, PlacedCheckpoint, SearchPlan, Study, Trial
from app.domain.stage_tree import upcoming_branches
from app.domain.terms import TrialState
from app.scheduling.costs import Costs

Key = str


@dataclass(slots=True)
class _Entry:
    """A checkpoint, linked to the one before it and to the next ones.

    total: seconds from step 0. asked: N of the equation.
    """

    kept: PlacedCheckpoint
    total: float
    before: _Entry | None = None
    following: dict[Key, _Entry] = field(default_factory=dict)
    asked: float = 0.0
    is_gone: bool = False

    @property
    def order(self) -> tuple[float, float, int, str]:
        """The order of deletion: by value, then by seconds per byte, then by step and name."""
        seconds = self.total - (self.before.total if self.before else 0.0)
        per_byte = seconds / max(1, self.kept.checkpoint.size)
        return (self.asked * per_byte, per_byte, self.kept.step, self.kept.key)


def deletion_order(plan: SearchPlan, costs: Costs) -> Iterator[PlacedCheckpoint]:
    """The checkpoints that may be deleted, in order of deletion."""
    entries = _entries(plan, costs)
    for study in plan.studies.values():
        _add_requests(plan, study, entries)
    used = checkpoint_needs.required_keys(plan)
    yield from _cheapest_first([entry for entry in entries.values() if entry.kept.key not in used], used)


def select_checkpoints(
    plan: SearchPlan, costs: Costs, excess: int, most: int, excluded: Collection[Key] = frozenset()
) -> list[PlacedCheckpoint]:
    """Up to `most` checkpoints that free at least `excess` bytes, if enough of them may be deleted.

    excluded: keys of checkpoints that are already selected.
    """
    chosen: list[PlacedCheckpoint] = []
    for candidate in deletion_order(plan, costs) if excess > 0 else ():
        if excess <= 0 or len(chosen) >= most:
            break
        if candidate.key not in excluded:
            chosen.append(candidate)
            excess -= candidate.checkpoint.size
    return chosen


def _entries(plan: SearchPlan, costs: Costs) -> dict[Key, _Entry]:
    """All checkpoints, each with the one before it on its path."""
    entries: dict[Key, _Entry] = {}
    ends: dict[str, tuple[float, _Entry | None]] = {}  # by node: seconds to its start, and the checkpoint before
    for node in plan.nodes.values():  # parents come first
        total, before = _beginning(plan, node, ends, costs, entries)
        ends[node.id] = total, before
        for step in sorted(node.checkpoints):
            at = PlacedCheckpoint(node.id, step, node.checkpoints[step])
            entry = _Entry(at, total + (step - node.start) * costs.seconds_per_step(node), before)
            if before is not None:
                before.following[at.key] = entry
            entries[at.key] = before = entry
    return entries


def _beginning(
    plan: SearchPlan, node: Node, ends: dict[str, tuple[float, _Entry | None]], costs: Costs, entries: dict[Key, _Entry]
) -> tuple[float, _Entry | None]:
    """The seconds to the start of a node, and the checkpoint that it is trained from."""
    if node.parent is None:
        return 0.0, None
    parent = plan.nodes[node.parent]
    total, before = ends[parent.id]
    steps = [step for step in parent.checkpoints if step <= node.start]
    if steps:
        before = entries[parent.checkpoints[max(steps)].key]
    return total + (node.start - parent.start) * costs.seconds_per_step(parent), before


def _add_requests(plan: SearchPlan, study: Study, entries: dict[Key, _Entry]) -> None:
    """Add the trials of a study to the checkpoints that they would resume from."""
    if study.is_final:
        return
    ranks = dict[int, int]()
    for rank, (trial, _) in enumerate(results.rank_trials(plan, study)):
        ranks[trial.number] = rank
        ranks.setdefault(trial.number if trial.trunk is None else trial.trunk, rank)
    for trial in study.trials:
        if trial.state in (TrialState.ACTIVE, TrialState.COMPLETED):
            last = _resume_checkpoint(plan, study, trial)
            if last is not None:
                entries[last.key].asked += 1 - ranks.get(trial.number, 0) / max(1, len(ranks))


def _resume_checkpoint(plan: SearchPlan, study: Study, trial: Trial) -> PlacedCheckpoint | None:
    """The checkpoint that a trial would resume from: others may have trained its path beyond its requested steps."""
    node, step = trial.path[-1], trial.steps
    for place in upcoming_branches(study, trial):
        if place[0] in plan.nodes:
            node, step = place
    return next(checkpoint_needs.latest_before(plan, node, step), None)


def _cheapest_first(entries: list[_Entry], used: set[Key]) -> Iterator[PlacedCheckpoint]:
    numbers = count()
    heap = [(entry.order, next(numbers), entry) for entry in entries]
    heapq.heapify(heap)
    while heap:
        order, _, entry = heapq.heappop(heap)
        if entry.is_gone or order != entry.order:
            continue  # it was pushed again with its new value
        yield entry.kept
        for changed in _remove(entry):
            if changed.kept.key not in used:
                heapq.heappush(heap, (changed.order, next(numbers), changed))


def _remove(entry: _Entry) -> Iterator[_Entry]:
    """Remove a checkpoint. Returns the others whose value changes."""
    entry.is_gone, before = True, entry.before
    for following in entry.following.values():
        following.before = before
        yield following
    if before is not None:
        del before.following[entry.kept.key]
        before.following |= entry.following
        before.asked += entry.asked
        yield before


def unused_checkpoints(plan: SearchPlan) -> list[PlacedCheckpoint]:
    """The checkpoints that only deleted studies have used."""
    if not any(study.deleted for study in plan.studies.values()):
        return []
    used = checkpoint_needs.required_keys(plan)
    return [entry for entry in checkpoint_needs.orphaned_checkpoints(plan) if entry.key not in used]


def checkpoints_to_release(plan: SearchPlan, excess: int, most: int) -> list[PlacedCheckpoint]:
    """Up to `most` checkpoints to release: the unused ones, and more until `excess` bytes are free."""
    chosen = unused_checkpoints(plan)[:most]
    excess -= sum(entry.checkpoint.size for entry in chosen)
    if excess > 0:
        costs, keys = Costs(), {entry.key for entry in chosen}
        costs.refit(plan)
        chosen += select_checkpoints(plan, costs, excess, most - len(chosen), excluded=keys)
    return chosen
