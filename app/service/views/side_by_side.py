"""A study as it happened with sharing, beside a computed schedule of the same trials without it, on one clock.

Without sharing each trial trains all of its own steps, in the order of the requests, on as many slots as the study used
at once, at the study's measured time per step. No trial waits for the results of others, so the true time without
sharing is at least this long.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from app.domain import accounting
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import NodeId
from app.service.plan_history import DecisionMade, PlanHistory, SlotSpan
from app.service.views.film import Clock
from stagetree.models.pages import Blocks, SideBySide
from stagetree.text import duration, percent

LEAST = 0.5
"""The least share of slot time spent on steps. Below it process starts dominate, and times are not comparable."""


class Block(NamedTuple):
    """A block of slot time."""

    slot: int
    begun: float
    ended: float
    trials: int = 1
    again: bool = False


class RequestedSteps(NamedTuple):
    """The steps of one run of a trial between two requests. parts: (node, start, end)."""

    run: tuple[int, int]
    parts: tuple[tuple[NodeId, int, int], ...]


def side_by_side(plan: SearchPlan, study: Study, history: PlanHistory, version: int) -> SideBySide:
    """Both schedules up to an event. Running stages are in neither, since steps are charged when a stage ends."""
    since = study.submitted_version - 1
    spans = [span for span in history.spans if since < span.begun <= version and span.proof is None]
    own = [span for span in spans if span.stage.study == study.id and span.ended is not None and span.ended <= version]
    shared = _recorded_blocks(plan, study, own)
    slots = max((block.slot for block in shared), default=-1) + 1
    pieces = list(_requests(plan, study, history.decisions(study.id, version)))
    pace = accounting.seconds_per_step(study)
    if pace * study.executed < LEAST * sum(block.ended - block.begun for block in shared):
        pace = 0.0
    alone = list(_unshared_blocks(pieces, slots, pace)) if slots and pace else []
    steps = sum(end - start for piece in pieces for _, start, end in piece.parts)
    before, after = _blocks(shared, study.executed), _blocks(alone, steps)
    text = _text(slots, before, after, pace)
    return SideBySide(slots=slots, seconds_per_step=round(pace, 6), shared=before, alone=after, text=text)


def _text(slots: int, shared: Blocks, alone: Blocks, pace: float) -> str:
    if not shared.seconds:
        return "Nothing was trained for this study yet."
    if not pace:
        return (
            f"{shared.steps:,} steps were run with sharing; without, the same trials take {alone.steps:,}. The "
            "duration of a step is unknown: most of the measured time may be the start of processes."
        )
    less = 1 - shared.seconds / alone.seconds
    saved = f", {percent(less)} less" if less > 0 else ""
    caution = "" if less > 0 else " Meanwhile slots waited or did other work: compare the steps, not the times."
    on = "one slot" if slots == 1 else f"{slots} slots"
    return (
        f"With sharing, as it happened on {on}: {shared.steps:,} steps in {duration(shared.seconds)}{saved}. Without, "
        f"computed for the same trials and decisions at {pace:.3g} s a step: {alone.steps:,} steps in "
        f"{duration(alone.seconds)}.{caution}"
    )


def _blocks(blocks: Sequence[Block], steps: int) -> Blocks:
    return Blocks(
        seconds=round(max((block.ended for block in blocks), default=0.0), 3),
        steps=steps,
        slot=[block.slot for block in blocks],
        begun=[round(block.begun, 3) for block in blocks],
        ended=[round(block.ended, 3) for block in blocks],
        trials=[block.trials for block in blocks],
        again=[block.again for block in blocks],
    )


# ---------------------------------------------------------------------------------------------------- as it happened


def _recorded_blocks(plan: SearchPlan, study: Study, spans: Sequence[SlotSpan]) -> list[Block]:
    """The study's own stages. A row is a slot, or several slots that were busy at different times."""
    clock = Clock((span.begun_at, span.ended_at or span.begun_at) for span in spans)
    need = Counter(name for trial in study.trials for name in {name for name, _ in plan.path_ends(trial)})
    free: list[tuple[float, str]] = []  # by row: the end of its last block, and its slot
    blocks = []
    for span in sorted(spans, key=lambda span: (span.begun_at, span.slot)):
        begun, ended = clock.elapsed(span.begun_at), clock.elapsed(span.ended_at or span.begun_at)
        row = next((row for row, (_, slot) in enumerate(free) if slot == span.slot), None)
        if row is None:
            row = next((row for row, (end, _) in enumerate(free) if end <= begun), len(free))
        free[row : row + 1] = [(ended, span.slot)]
        blocks.append(Block(row, begun, ended, max(1, need[span.stage.node])))
    return blocks


# ----------------------------------------------------------------------------------------------------- trained alone


def _requests(plan: SearchPlan, study: Study, decisions: Iterable[DecisionMade]) -> Iterator[RequestedSteps]:
    """The steps that trials took, in the order of their requests."""
    requests = [each for each in decisions if each.kind in ("start", "promote") and each.trial is not None]
    done = defaultdict[int, int](int)
    for decision in requests:
        if decision.trial is not None and decision.trial < len(study.trials):
            since, until = done[decision.trial], decision.steps or 0
            done[decision.trial] = max(since, until)
            yield from _steps_between(plan, study, decision.trial, since, until)


def _steps_between(plan: SearchPlan, study: Study, trial: int, since: int, until: int) -> Iterator[RequestedSteps]:
    for number, run in enumerate(study.trials[trial].single_runs()):
        ends = ((plan.nodes[name], end) for name, end in plan.path_ends(run))
        parts = ((node.id, max(since, node.start), min(end, until, node.reached)) for node, end in ends)
        if trained := tuple(part for part in parts if part[1] < part[2]):
            yield RequestedSteps((trial, number), trained)


def _unshared_blocks(pieces: Sequence[RequestedSteps], slots: int, pace: float) -> Iterator[Block]:
    """A free slot takes the first request whose trial is not on another slot."""
    waiting = defaultdict[tuple[int, int], list[int]](list)
    for number, piece in enumerate(pieces):
        waiting[piece.run].append(number)
    ready = [numbers.pop(0) for numbers in waiting.values()]
    heapq.heapify(ready)
    free = [(0.0, slot) for slot in range(slots)]
    under_way: list[tuple[float, int, int]] = []
    trained: dict[NodeId, int] = {}
    while ready or under_way:
        while ready and free:
            (begun, slot), piece = heapq.heappop(free), pieces[heapq.heappop(ready)]
            old, new = _split_steps(piece, trained)
            middle, ended = begun + old * pace, begun + (old + new) * pace
            if old:
                yield Block(slot, begun, middle, again=True)
            if new:
                yield Block(slot, middle, ended)
            heapq.heappush(under_way, (ended, slot, (waiting[piece.run] or [-1]).pop(0)))
        ended, slot, following = heapq.heappop(under_way)
        heapq.heappush(free, (ended, slot))
        free = [(max(at, ended), each) for at, each in free]
        if following >= 0:
            heapq.heappush(ready, following)


def _split_steps(piece: RequestedSteps, trained: dict[NodeId, int]) -> tuple[int, int]:
    """The steps that an earlier request trained already, and the new ones."""
    old = new = 0
    for node, start, end in piece.parts:
        parted = min(end, max(start, trained.get(node, start)))
        trained[node] = max(end, trained.get(node, end))
        old, new = old + parted - start, new + end - parted
    return old, new
