"""Plans for tests: built event by event, and read by the plainest algorithms."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from runpy import run_path
from typing import Any

from hypothesis import HealthCheck, settings

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.evolve import evolve
from app.domain.search_plan import NO_PROGRESS, Chain, Node, Progresses, SearchPlan, Trial
from app.domain.stage_tree import Place, TreeStage, build_stage_tree
from app.domain.terms import ChainId, NodeId, StudyId
from app.scheduling.costs import Costs
from app.scheduling.demands import Urgency
from app.scheduling.fair_share import Policy
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import stages_of
from stagetree.spec import StudySpec

METRIC = "accuracy"
POLICIES: dict[str, Policy] = run_path(str(Path(__file__).parents[1] / "benchmarks" / "policies.py"))["COMPARED"]
"""The policies of the service, and further policies for benchmarks."""

OPENED = e.PlanOpened(trainer="digits", trainer_version="1", trainer_args={}, seed=0)
MORE = int(os.environ.get("STAGETREE_TEST_MORE", "1"))
"""How many times more examples than usual a property is tried on."""


def max_examples(examples: int, **options: Any) -> settings:
    """Settings for a property: this many examples, or more where the environment asks for it."""
    return settings(
        max_examples=examples * MORE,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
        **options,
    )


def study_of(trials: Iterable[tuple[dict[str, Any], int]], **fields: Any) -> StudySpec:
    """A study that trains a list of (hyper-parameters, steps)."""
    listed = [{"hp": hp, "steps": steps} for hp, steps in trials]
    named = {"name": "study", "trainer": "digits", "metric": METRIC, "mode": "max"}
    return StudySpec.from_dict({**named, "tuner": {"kind": "trials", "trials": listed}, **fields})


def steps(*values: Any, milestones: Iterable[int] = ()) -> dict[str, Any]:
    """A sequence that takes these values, each next one from a milestone on."""
    return {"family": "values", "values": list(values), "milestones": list(milestones)}


class Story:
    """A plan and all that happened to it."""

    def __init__(self) -> None:
        self.plan, self.events = SearchPlan(), list[e.Event]()
        self._numbers = count()

    def happen(self, *events: e.Event) -> None:
        for event in events:
            evolve(self.plan, event)
            self.plan.version += 1
            self.events.append(event)

    def give(self, command: c.Command) -> tuple[e.Event, ...]:
        events = decide(self.plan, command)
        self.happen(*events)
        return events

    def submit(self, *trials: tuple[dict[str, Any], int], name: str = "", **fields: Any) -> StudyId:
        """A study of these trials, running."""
        study = StudyId(name or f"study-{next(self._numbers)}")
        spec = {"metric": METRIC, "mode": "max", **fields}
        self.give(c.SubmitStudy(plan=OPENED, study=study, spec=spec, at=0.0))
        for hp, asked in trials:
            self.give(c.AddTrial(study=study, hp=hp, steps=asked))
        return study

    def trial(self, study: StudyId, number: int = 0) -> Trial:
        return self.plan.studies[study].trials[number]

    def path(self, study: StudyId, number: int = 0) -> list[Node]:
        return [self.plan.nodes[name] for name in self.trial(study, number).path]

    def assign(self, *stages: tuple[Node, int, int], study: StudyId | None = None) -> Chain:
        """A chain of (node, start, end)."""
        chain, charged = ChainId(f"chain-{next(self._numbers)}"), study or next(iter(self.plan.studies))
        made = tuple(e.Stage(node=node.id, start=start, end=end, study=charged) for node, start, end in stages)
        self.give(c.AssignChain(chain=chain, slot="gpu0", stages=made, at=0.0))
        return self.plan.chains[chain]

    def take(self, frontier: Frontier, policy: str = "critical_path") -> Chain | None:
        """Assign a slot the policy's choice, if there is work."""
        choice = POLICIES[policy]([frontier])
        return choice and self.assign_spans(choice[1], dict(frontier.progress))

    def assign_spans(self, spans: Sequence[Span], progress: Progresses = NO_PROGRESS) -> Chain:
        """Assign these spans to a new slot."""
        number = next(self._numbers)
        chain, slot, stages = ChainId(f"chain-{number}"), f"gpu{number}", stages_of(self.plan, spans)
        assert self.give(c.AssignChain(chain=chain, slot=slot, stages=stages, at=float(number), progress=progress))
        return self.plan.chains[chain]

    def evaluate(self, node: NodeId, step: int, value: float | None = 0.5) -> None:
        self.happen(e.Evaluated(node=node, step=step, metrics={METRIC: value}))

    def keep(self, node: NodeId, step: int, *, intermediate: bool = False) -> None:
        key = f"{node}/{step}/{next(self._numbers)}"
        self.happen(e.CheckpointKept(node=node, step=step, key=key, sha256="", size=1, intermediate=intermediate))

    def drop(self, node: NodeId, step: int) -> None:
        key = self.plan.nodes[node].checkpoints[step].key
        self.happen(e.CheckpointDropped(node=node, step=step, key=key, reason="it is gone"))

    def train(self, chain: Chain, seconds: float = 1.0, value: float | None = 0.5) -> e.Stage:
        """Complete the current stage; its checkpoint is being written."""
        stage = chain.stages[chain.index]
        waited = [step for step in self.plan.nodes[stage.node].waiting if stage.start < step <= stage.end]
        for step in sorted({*waited, *stage.evaluate}):
            self.evaluate(stage.node, step, value)
        self.happen(e.StageCompleted(chain=chain.id, index=chain.index, seconds=seconds))
        return stage

    def end(self, chain: Chain, outcome: str = "done", steps: int = 0) -> None:
        self.happen(e.ChainEnded(chain=chain.id, outcome=outcome, steps=steps))

    def finish(self, chain: Chain) -> None:
        """Complete the rest of a chain."""
        while not chain.is_trained:
            self.train(chain)
        for stage in chain.stages:
            if self.plan.nodes[stage.node].saving.get(stage.end) == chain.id:
                self.keep(stage.node, stage.end)
        self.end(chain)

    def drain(self, frontier: Frontier, policy: str = "critical_path") -> None:
        """Complete all work without a fault."""
        frontier.refresh()
        for _ in range(1000):
            chain = next(iter(self.plan.chains.values()), None) or self.take(frontier, policy)
            if chain is None:
                return
            self.finish(chain)
            frontier.refresh()
        raise AssertionError("the work does not come to an end")


# ------------------------------------------------------------------------------------------------ the plain reading


def spans(plan: SearchPlan, progress: Progresses = NO_PROGRESS) -> set[tuple[str, int, int]]:
    """The stage tree as (node, start, end)."""
    return {(stage.node, stage.start, stage.end) for stage in build_stage_tree(plan, progress)}


def missing(plan: SearchPlan, progress: Progresses = NO_PROGRESS) -> set[Place]:
    """The missing steps of requests of running studies that no slot is running, found step by step."""
    found: set[Place] = set()
    for node in plan.nodes.values():
        for step in node.waiting:
            if any(plan.waiting_studies(node, step)):
                _walk_back(plan, node, step, progress, found)
    return found


def _walk_back(plan: SearchPlan, node: Node, step: int, progress: Progresses, found: set[Place]) -> None:
    """Add the missing steps up to this one, until a step that another walk has passed."""
    while (
        (node.id, step) not in found
        and not node.covers(step, progress)
        and step not in {*node.checkpoints, *node.upcoming_states(progress)}
    ):
        if step > node.start:
            found.add((node.id, step))
            step -= 1
        if step == node.start and node.id in plan.means and step not in node.checkpoints:
            if not node.covers(step, progress) and step not in {*node.upcoming_states(progress)}:
                for name, at in plan.origins(node):
                    _walk_back(plan, plan.nodes[name], at, progress, found)
            return
        if step == node.start:
            if node.parent is None:
                return
            node = plan.nodes[node.parent]


def urgencies(
    plan: SearchPlan, costs: Costs, progress: Progresses = NO_PROGRESS
) -> dict[StudyId, dict[Place, Urgency]]:
    """For each study and ready place, the most urgent path from there to a request, by walking all paths."""
    return urgencies_of(plan, costs, build_stage_tree(plan, progress))


def urgencies_of(plan: SearchPlan, costs: Costs, stages: Iterable[TreeStage]) -> dict[StudyId, dict[Place, Urgency]]:
    """The same, for a stage tree of the plan."""
    ways: dict[Place, dict[Place, float]] = {}  # to each place: from each head, the longest
    found: dict[StudyId, dict[Place, Urgency]] = {}
    for stage in stages:
        node, here = plan.nodes[stage.node], {(stage.node, stage.start): 0.0} if stage.ready else {}
        is_mean = node.id in plan.means and stage.parent is not None and stage.parent[0] != node.id
        for place in plan.missing_states(node) if is_mean else [stage.parent] if stage.parent else []:
            for head, seconds in ways.get(place, {}).items():
                here[head] = max(here.get(head, 0.0), seconds)
        takes = (stage.end - stage.start) * costs.seconds_per_step(node)
        ways[stage.node, stage.end] = here = {head: before + takes for head, before in here.items()}
        for study, number in node.waiting.get(stage.end, ()):
            for head, after in here.items() if plan.studies[study].is_running else ():
                urgency, heads = (plan.trial((study, number)).priority, after), found.setdefault(study, {})
                heads[head] = max(heads.get(head, urgency), urgency)
    return found
