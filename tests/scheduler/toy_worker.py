"""Workers of a scene that train a number, with a trainer that may forget how many steps it has taken."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from assignments import FENCE
from scenes import Scene

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.schedule import segment_at
from app.domain.slots import verification_device
from app.domain.terms import ChainId, FailureKind, NodeId, VerificationKind


@dataclass
class ToyModel:
    """x grows by lr a step, and by twice that once `count` has come to `late`.

    forgets: whether `count` is missing in the state. every: the steps of an epoch, which has a factor drawn
    by a generator that is missing in the state; 0 for none. A checkpoint is what `state` gives.
    """

    late: int
    forgets: bool
    x: float = 0.0
    step: int = 0
    count: int = 0
    every: int = 0
    draws: int = 0
    drawn: int = 0

    def train(self, hp: dict[str, Any], until: int) -> None:
        while self.step < until:
            lr = float(segment_at(hp, self.step).values(self.step)["lr"])  # type: ignore[arg-type]
            if self.every and self.step % self.every == 0:
                self.drawn, self.draws = self.draws, self.draws + 1
            self.x += lr * (2 if self.count >= self.late else 1) * (1 + self.drawn)
            self.step, self.count = self.step + 1, self.count + 1

    def state(self) -> tuple[float, int, int, int]:
        return (self.x, self.step, 0 if self.forgets else self.count, self.drawn)

    def load(self, saved: tuple[float, int, int, int]) -> None:
        self.x, self.step, self.count, self.drawn = saved


@dataclass
class ToyWorkers:
    """What all slots of a scene share: the trainer, and the store.

    check_error: what a check raises; only with that lr, if `check_fails_at` says one.
    breaks_on: a kind of device on which every check fails. sees_stray: whether a comparison notices that `count` does
    not come back with the state. cannot_compare: a kind of device on which nothing can be compared.
    """

    scene: Scene
    late: int = 0
    forgets: bool = False
    sees_stray: bool = True
    every: int = 0
    check_error: str = ""
    check_fails_at: float | None = None
    breaks_on: str = "none"
    cannot_compare: str = ""
    states: dict[str, tuple[float, int, int, int]] = field(default_factory=dict)

    def model(self) -> ToyModel:
        return ToyModel(self.late, self.forgets, every=self.every)

    def alone(self, hp: dict[str, Any], steps: int) -> float:
        model = self.model()
        model.train(hp, steps)
        return model.x

    def run(self, rounds: int = 500) -> None:
        """Tick and work until nothing is left to do."""
        for _ in range(rounds):
            self.scene.scheduler.tick()
            if not self.scene.messages:
                return
            self.work()
        raise AssertionError("it does not come to an end")

    def work(self) -> None:
        """Do the chain of the oldest message, of any purpose."""
        self.finish(self.scene.claim()[0])

    def finish(self, chain: str, **shown: str) -> None:
        """A chain that was begun is done. shown: fields of what its proof says last."""
        work = self.scene.assignment(chain)
        with self.scene.records.read() as rows:
            slot = rows.slots.get(self.scene.row(chain).slot)
        assert slot is not None
        facts = (
            self._prove(chain, work, verification_device(slot)) if work.proof is not None else self._train(chain, work)
        )
        facts = [replace(each, **shown) if isinstance(each, e.ExactnessTested) else each for each in facts]
        end = "end" if isinstance(facts[-1], e.StageFailed) else "finish"
        self.scene.record(chain, facts, lambda rows: getattr(rows.chains, end)(chain, FENCE))

    def _load_model(self, work: ChainAssignment) -> ToyModel:
        model = self.model()
        if work.resume is not None:
            model.load(self.states[work.resume.key])
        assert model.step == work.stages[0].start
        return model

    def _train(self, chain: str, work: ChainAssignment) -> list[e.Event]:
        model, facts, hp = self._load_model(work), list[e.Event](), dict(work.hp)
        for index, stage in enumerate(work.stages):
            inside = {step for step in work.keep_at if stage.start < step < stage.end}
            for step in sorted({*inside, *stage.evaluate, stage.end}):
                model.train(hp, step)
                if step in stage.evaluate:
                    facts.append(e.Evaluated(node=stage.node, step=step, metrics={"loss": model.x}))
                if step == stage.end:
                    facts.append(e.StageCompleted(chain=chain, index=index, seconds=1.0))  # type: ignore[arg-type]
                if step in inside or step == stage.end:
                    facts.append(self._keep_state(chain, stage.node, model, step in inside))
        return [*facts, e.ChainEnded(chain=chain, outcome="done")]  # type: ignore[arg-type]

    def _keep_state(self, chain: str, node: NodeId, model: ToyModel, is_inside: bool) -> e.CheckpointKept:
        key = f"{chain}/{model.step}"
        self.states[key] = model.state()
        return e.CheckpointKept(
            node=node, step=model.step, key=key, sha256=str(model.state()), size=1, intermediate=is_inside
        )

    def _prove(self, chain: str, work: ChainAssignment, device: str) -> list[e.Event]:
        order, name = work.proof, chain
        assert order is not None
        kind, node, begin = VerificationKind(order.kind), work.stages[0].node, work.stages[0].start
        stray = (
            {"self.count": "did not come back with the state"}
            if (self.forgets or self.every) and self.sees_stray
            else {}
        )
        if kind == VerificationKind.CHECK:
            if self.check_error and self.check_fails_at in (None, segment_at(work.hp, 0).values(0)["lr"]):
                return self._failure_events(name, FailureKind.EXCEPTION, self.check_error)
            if device == self.breaks_on:
                return self._failure_events(name, FailureKind.EXCEPTION, "ModuleNotFoundError: no module named 'timm'")
            if set(order.metrics) - {"loss"}:
                return self._failure_events(name, FailureKind.METRIC, f"{order.metrics} are not reported")
            facts = [self._test_event(name, kind, node, begin, work.stages[-1].end, "", {})]
        else:
            model, facts = self._load_model(work), list[e.ExactnessTested]()
            for each in order.comparisons:
                model.train(dict(work.hp), each.step)
                is_equal = str(model.state()) == each.sha256 if each.key else each.metrics == {"loss": model.x}
                difference = "" if is_equal else "1 of 2 leaves differ, the first is x"
                shown = stray if kind == VerificationKind.HANDOVER else {}
                tested = self._test_event(name, kind, NodeId(each.node), begin, each.step, difference, shown)
                facts.append(replace(tested, since=each.since))
        unproven = "its bits change" if device == self.cannot_compare else ""
        told: list[e.Event] = [replace(each, device=device, unproven=unproven) for each in facts]
        steps = work.stages[-1].end - begin
        return [*told, e.ChainEnded(chain=name, outcome="done", steps=steps, seconds=1.0)]  # type: ignore[arg-type]

    def _failure_events(self, chain: str, kind: FailureKind, error: str) -> list[e.Event]:
        failed = e.StageFailed(
            chain=ChainId(chain), index=0, step=0, kind=kind, error=error, seconds=0.1, signature="s"
        )
        return [failed]

    def _test_event(
        self,
        chain: str,
        kind: VerificationKind,
        node: NodeId,
        begin: int,
        step: int,
        difference: str,
        stray: dict[str, str],
    ) -> e.ExactnessTested:
        return e.ExactnessTested(
            chain=chain,  # type: ignore[arg-type]
            proof=kind,
            device="",
            node=node,
            begin=begin,
            step=step,
            difference=difference,
            stray=stray,
        )


def proving(slots: int = 1, **workers: Any) -> ToyWorkers:
    """A scene whose scheduler has hand-overs proven, and its workers."""
    return ToyWorkers(Scene(slots=slots, proofs=True), **workers)
