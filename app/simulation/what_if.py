"""What another tuner would have decided over the results that exist: nothing is trained.

The study is run again on virtual slots, with its study file changed and the same configurations in the same order.
Since names come from content, a result is known wherever any study of the plan has one. Where none is known, the last
one before it on the same path stands in for it, and its steps count as still needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain import results
from app.domain.ids import NodeId, StudyId
from app.domain.search_plan import Node, SearchPlan, Study
from app.scheduling.tuners import TunerDriver, sampler_of
from app.scheduling.tuners.samplers.base import NonAdaptive, Proposal, Sampler
from app.simulation.simulator import Simulator
from stagetree.spec import Problem, SpecError, StudySpec

Json = dict[str, Any]


def what_if(plan: SearchPlan, name: StudyId, changes: Mapping[str, Any], *, slots: int = 1) -> Json:
    """The same study with `changes` to its study file, by dotted path. Raises `stagetree.spec.SpecError`.

    saved: steps that were trained for the study and would not have been. needed: steps that nobody has trained.
    """
    study = plan.studies[name]
    spec = StudySpec.from_dict(changed(study.spec, changes)).to_json()
    known = _Known(plan)
    simulator = Simulator(slots=slots, measure=known)
    assert plan.opened is not None
    simulator.give(c.SubmitStudy(plan=plan.opened, study=name, spec=spec, at=0.0))
    simulator.set_tuner(name, TunerDriver(spec, sampler=_again(study, StudySpec.from_dict(spec))))
    world = known.world = simulator.plan
    simulator.run()
    imagined = world.studies[name]
    return {
        "study": name,
        "changes": dict(changes),
        "trials": len(imagined.trials),
        "requested": imagined.requested,
        "unique": imagined.unique,
        "saved": sum(_excess(plan, study, imagined)),
        "needed": sum(max(0, end - _trained(plan, node, world)) for node, end in imagined.deepest.items()),
        "best": _best(world, imagined),
    }


def changed(spec: Any, changes: Mapping[str, Any]) -> Any:
    """The study file with the value at each dotted path replaced; None takes a field out. Raises `SpecError`."""
    found = deepcopy(spec)
    for path, value in changes.items():
        *owners, last = path.split(".")
        owner = found
        for part in owners:
            owner = owner.setdefault(part, {}) if isinstance(owner, dict) else None
        if not isinstance(owner, dict):
            raise SpecError([Problem(path, "cannot be set: what it would be a field of is not an object")])
        owner[last] = value
        if value is None:
            del owner[last]
    return found


class _Again(NonAdaptive):
    """The configurations that a study had, in their order, and then those that its sampler would have gone on with."""

    def __init__(self, study: Study, beyond: Sampler) -> None:
        own = (trial for trial in study.trials if trial.reason.get("by") == "tuner")
        self._had = [trial.hp for trial in own]
        self._beyond = beyond

    def propose(self, number: int) -> Proposal | None:
        return Proposal(self._had[number]) if number < len(self._had) else self._beyond.propose(number)

    def size(self) -> int | None:
        return self._beyond.size()


def _again(study: Study, spec: StudySpec) -> Sampler | None:
    beyond = sampler_of(spec)
    return None if beyond is None else _Again(study, beyond)


class _Known:
    """Measures a virtual model by looking up what is on record for its name and step, or else before it on its path."""

    def __init__(self, plan: SearchPlan) -> None:
        self._plan, self.world = plan, SearchPlan()

    def __call__(self, node: Node, step: int) -> e.Metrics:
        for ancestor in reversed(self.world.ancestry(node.id)):
            recorded = self._plan.nodes[ancestor.id].metrics if ancestor.id in self._plan.nodes else {}
            at = max((known for known in recorded if known <= step), default=None)
            if at is not None:
                return recorded[at]
        return {}


def _trained(plan: SearchPlan, name: NodeId, world: SearchPlan) -> int:
    """The last step of a node that was trained for anyone; its start if it was not."""
    node = plan.nodes.get(name)
    if node is None:
        return world.nodes[name].start
    return max((*node.checkpoints, *node.metrics, *(plan.nodes[child].start for child in node.children), node.start))


def _excess(plan: SearchPlan, study: Study, imagined: Study) -> list[int]:
    """For each node, the steps that the study had there and the imagined one would not."""
    return [
        end - max(imagined.deepest.get(name, 0), plan.nodes[name].start)
        for name, end in study.deepest.items()
        if end > max(imagined.deepest.get(name, 0), plan.nodes[name].start)
    ]


def _best(world: SearchPlan, study: Study) -> Json | None:
    found = results.best(world, study)
    return found and {"trial": found[0].number, "value": found[1].value, "steps": found[1].step}
