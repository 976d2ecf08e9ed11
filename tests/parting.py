"""A plan whose trials part at three steps and resume there, and its reports of comparisons."""

from __future__ import annotations

from typing import Any

from plans import Story, steps
from stacks import Json

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Study
from app.domain.terms import ChainId, NodeId, VerificationKind
from app.exactness import Judgement, judge, trial_marks
from app.exactness.verification import Verification, keep_at
from app.scheduling.frontier import Frontier, Span


class Parting(Story):
    """A plan whose first study parts at 8, 11 and 13: a long trial, and one that resumes at each of these steps.

    longer: additional steps of each trial. more: the number of further trials of 16 steps that part at 13.
    is_watched: whether states are kept behind each resumption.
    """

    def __init__(self, *, longer: int = 0, more: int = 0, is_watched: bool = False, **fields: Any) -> None:
        super().__init__()
        self.frontier, self.last, self.is_watched = Frontier(self.plan), 20 + longer, is_watched
        rates = [steps(0.1, value, milestones=[at]) for at, value in ((8, 0.3), (11, 0.2), (13, 0.4))]
        others = [({"lr": steps(0.1, 0.5 + number / 8, milestones=[13])}, 16) for number in range(more)]
        self.study = self.submit(*(({"lr": rate}, self.last) for rate in (0.1, *rates)), *others, **fields)
        self.trunk = self.trial(self.study).path[-1]
        self.train_through((self.trunk, 0, 8), (self.trunk, 8, 11), (self.trunk, 11, 13), (self.trunk, 13, self.last))
        for number, at in ((1, 8), (2, 11), (3, 13)):
            self.train_through((self.leaf(number), at, self.last))
        for number in range(4, 4 + more):
            self.train_through((self.leaf(number), 13, 16))

    def train_through(self, *stages: tuple[NodeId, int, int]) -> tuple[int, ...]:
        """A chain of these stages, of which the states are kept that are to be compared; and at which steps."""
        chain = self.assign(*((self.plan.nodes[name], start, end) for name, start, end in stages))
        spans = [Span(each.node, each.start, each.end, each.study) for each in chain.stages]
        wanted = keep_at(self.frontier, spans) if self.is_watched else ()
        for step in wanted:
            name = next(name for name, start, end in stages if start < step <= end)
            self.keep(name, step, intermediate=True)
        self.finish(chain)
        return wanted

    @property
    def it(self) -> Study:
        return self.plan.studies[self.study]

    def leaf(self, number: int) -> NodeId:
        return self.trial(self.study, number).path[-1]

    def marks(self) -> dict[int, str]:
        mark = trial_marks(self.plan, self.it)
        return {trial.number: mark(trial) for trial in self.it.trials}

    def judgement(self) -> Judgement:
        return judge(self.plan, self.it)

    def compare(self, number: int, begin: int = 0, step: int = 20, since: int | None = None, **found: Any) -> None:
        """The trial was trained again from `begin` on, where the record was trained from `since` on."""
        resumed = {1: 8, 2: 11, 3: 13}.get(number, 0)
        how: Json = {"proof": VerificationKind.HANDOVER, "device": "cpu", **found}
        node, began = self.leaf(number), resumed if since is None else since
        self.happen(e.ExactnessTested(chain=ChainId("proof"), node=node, begin=begin, step=step, since=began, **how))

    def make(self, proof: Verification, **found: Any) -> None:
        """A slot makes the comparison, and reports equality, or the given difference."""
        chain = ChainId(f"proof-{len(self.events)}")
        self.give(c.AssignChain(chain=chain, slot="prover", stages=proof.stages, at=0.0, proof=proof.kind))
        begin = proof.resume.step if proof.resume else 0
        for each in proof.order.comparisons:
            place: Json = {"node": NodeId(each.node), "step": each.step, "since": each.since, "begin": begin}
            self.happen(e.ExactnessTested(chain=chain, proof=proof.kind, device="cpu", **place, **found))
        steps_made = proof.stages[-1].end - begin
        self.happen(e.ChainEnded(chain=chain, outcome="done", steps=steps_made, seconds=1.0))
