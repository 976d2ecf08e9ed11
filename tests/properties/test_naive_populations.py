"""Population based training against the ASHA paper, A.3: at every decision, the next trial and its possible parents."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.search_plan import TrialEvent
from tests.plans import max_examples
from tests.tuners.worlds import unlucky

PBT = {"kind": "pbt", "population_size": 10, "ready_steps": 3, "max_steps": 12}
Decision = tuple[str, int, int, frozenset[int]]
"""(start | promote | stop, trial or -1, steps or 0, the trials that a new one may copy)"""


class Naive:
    """Reads a history line by line; `next` gives the decision that must follow."""

    def __init__(self, size: int) -> None:
        self.size, self.drawn, self.generation = size, 0, 0
        self.losses: dict[int, float | None] = {}  # one for each member; None while it trains
        self.queue: list[Decision] = []

    @property
    def next(self) -> Decision | None:
        if self.drawn < self.size:
            return ("start", -1, PBT["ready_steps"], frozenset())
        return self.queue[0] if self.queue else None

    def read(self, line: TrialEvent) -> None:
        match line.kind:
            case "start" | "promote" | "stop":
                self.grant(line)
            case "result" | "fail" if line.trial in self.losses:
                self.losses[line.trial] = math.inf if line.kind == "fail" else line.metrics["loss"]
            case "cancel":
                self.losses.pop(line.trial, None)
                self.queue = [each for each in self.queue if each[1] != line.trial]
        is_over = self.drawn == self.size and self.losses and None not in self.losses.values()
        if is_over and not self.queue:
            self.select()

    def grant(self, line: TrialEvent) -> None:
        if self.drawn < self.size:
            self.drawn += 1
        else:
            self.queue.pop(0)
        if line.kind == "stop":
            self.losses.pop(line.trial)
        else:
            self.losses[line.trial] = None

    def select(self) -> None:
        """Truncation selection: copies of the top fifth replace the bottom fifth, and failed members."""
        ranked = sorted(self.losses, key=lambda trial: (self.losses[trial], trial))
        alive = [trial for trial in ranked if self.losses[trial] != math.inf]
        fifth = 0 if len(ranked) == 1 else max(1, len(ranked) // 5)
        self.generation += 1
        self.losses = dict.fromkeys(alive, 0.0)
        steps = PBT["ready_steps"] * (self.generation + 1)
        if steps > PBT["max_steps"]:
            self.losses = {}
            return
        best = frozenset(trial for trial in ranked[: len(ranked) - fifth] if trial in alive)
        best = frozenset([trial for trial in ranked if trial in best][:fifth])
        for place, trial in enumerate(ranked):
            is_bottom = place >= len(ranked) - fifth
            if best and (is_bottom or trial not in alive):
                self.queue += [("stop", trial, 0, frozenset[int]())] * (trial in alive)
                self.queue.append(("start", -1, steps, best))
            elif trial in alive:
                self.queue.append(("promote", trial, steps, frozenset()))


@pytest.mark.parametrize("slots", [1, 4, 30])
@max_examples(4)
@given(seed=st.integers(0, 10**6))
def test_every_decision_follows_appendix_a_3(slots: int, seed: int) -> None:
    study, naive = unlucky(PBT, seed, slots), Naive(PBT["population_size"])
    for line in study.history:
        if line.kind in ("start", "promote", "stop"):
            expected = naive.next
            assert expected is not None
            kind, trial, steps, models = expected
            assert (line.kind, -1 if kind == "start" else line.trial) == (kind, trial)
            assert kind == "stop" or line.steps == steps
            assert not models or line.reason["exploits"] in models
        naive.read(line)
    assert study.state != "completed" or naive.next is None
