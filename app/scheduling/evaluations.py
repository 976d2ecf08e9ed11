"""At which steps a node must be evaluated while it is trained."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from app.domain.ids import NodeId
from app.domain.search_plan import Node, SearchPlan, Study


class StepRange(Protocol):
    """Of a node, the steps (start, end]."""

    @property
    def node(self) -> NodeId: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def evaluations(plan: SearchPlan, node: Node, start: int, end: int) -> list[int]:
    """The steps in (start, end], or just `start` when they are equal, after which to evaluate.

    Those are the steps that trials wait for, and every `eval_every` of the running studies that pass here; what has
    been evaluated already is not evaluated again, nor what a study has tried in vain as often as it may.
    """
    wanted = {step for step in node.waiting if start < step <= end or start == step == end}
    for study in plan.studies.values():
        if study.is_running and node.id in study.max_step_by_node:
            steps = _regular(study, start, min(end, study.max_step_by_node[node.id]))
            wanted.update(step for step in steps if node.evaluation_tries(step) <= study.max_restarts)
    return sorted(step for step in wanted if step not in node.metrics)


def evaluations_of_each(plan: SearchPlan, parts: Sequence[StepRange]) -> Iterator[list[int]]:
    """The evaluations of each of some parts that follow each other. A node with many of them is looked at once."""
    for name, group in groupby(parts, key=attrgetter("node")):
        node, inside = plan.nodes[name], list(group)
        steps = evaluations(plan, node, inside[0].start, inside[-1].end)
        for part in inside:
            if part.start == part.end:
                yield evaluations(plan, node, part.start, part.end)
            else:
                yield steps[bisect_right(steps, part.start) : bisect_right(steps, part.end)]


def _regular(study: Study, start: int, end: int) -> Iterable[int]:
    every = study.eval_every
    return range(start + every - start % every, end + 1, every) if every else ()
