"""Hyperband (Li et al. 2018) as brackets of SHA, and asynchronous Hyperband (ASHA paper, §5.1) as brackets of ASHA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from app.scheduling.tuners.asha import Bracket
from app.scheduling.tuners.base import NewTrial, Next, Tuner
from app.scheduling.tuners.rungs import log_floor, rungs_down_from
from app.scheduling.tuners.sha import SyncBracket
from stagetree.spec import StudySpec

MAX_RUNGS = 5
"""How many rungs asynchronous Hyperband has at most, unless it is told the lowest (ASHA paper, §5.1)."""


class _Brackets(Tuner):
    """Several brackets in one study. Every reason names its bracket, so that the history tells which trial is whose."""

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        self.brackets: list[Any] = []
        self._bracket_of: dict[int, int] = {}

    def observe(self, event: TrialEvent) -> None:
        if event.kind == TrialEventKind.START:
            self._bracket_of[event.trial] = event.reason["bracket"]
        self.brackets[self._bracket_of[event.trial]].observe(event, self.loss(event))


class Hyperband(_Brackets):
    """Every bracket of synchronous successive halving, from the most aggressive to plain random search.

    Bracket s begins with ceil((s_max + 1) * eta^(s_max - s) / (s_max - s + 1)) configurations, so that each bracket
    takes about the same number of steps (Hyperband, Algorithm 1; s counts as in the ASHA paper, from the most
    aggressive). All brackets run at once: they do not depend on each other. Rungs are counted from `max_steps` down.
    """

    eager = True

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        eta = tuner.reduction_factor
        rungs = log_floor(tuner.max_steps, tuner.min_steps, eta) + 1
        for s, width in enumerate(tuner.widths()):
            steps = rungs_down_from(tuner.max_steps, rungs - s, eta)
            self.brackets.append(SyncBracket(width, steps, eta))

    def set_max_trials(self, trials: int) -> None:
        for bracket in self.brackets:
            bracket.width = min(bracket.width, trials)
            trials -= bracket.width

    def suggest(self) -> Next | None:
        """Every bracket's configurations first, so that what is granted together does not depend on results."""
        starts = ((bracket.start(), number) for number, bracket in enumerate(self.brackets))
        promotions = ((bracket.promotion(), number) for number, bracket in enumerate(self.brackets))
        wanted = ((action, number) for action, number in chain(starts, promotions) if action is not None)
        return next((_in_bracket(action, number) for action, number in wanted), None)

    def suggest_many(self, most: int) -> Sequence[Next]:
        starts = [_in_bracket(start, n) for n, bracket in enumerate(self.brackets) for start in bracket.starts(most)]
        return starts[:most] or super().suggest_many(most)


class AsyncHyperband(_Brackets):
    """ASHA in several brackets at once: by default eta 4, at most five rungs, the three most aggressive brackets.

    The configurations are divided so that all brackets take the same number of steps: 70.5, 22.1 and 7.1 % by default.
    A free slot takes a promotion if any bracket has one, the most aggressive first; otherwise a new configuration goes
    to the bracket that is furthest behind its share.
    """

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        eta, most = tuner.reduction_factor, tuner.max_steps
        rungs = log_floor(most, tuner.min_steps or 1, eta) + 1
        rungs = rungs if tuner.min_steps else min(rungs, MAX_RUNGS)
        ladders = [rungs_down_from(most, rungs - s, eta) for s in range(min(tuner.brackets, rungs))]
        self.brackets = [Bracket(steps, eta) for steps in ladders]
        self._trials, self._rungs, self._eta = tuner.num_trials, rungs, eta
        self.set_max_trials(tuner.num_trials)

    def set_max_trials(self, trials: int) -> None:
        trials = min(trials, self._trials)
        self.widths = shares(trials, self._rungs, self._eta, len(self.brackets))

    def suggest(self) -> Next | None:
        for number, bracket in enumerate(self.brackets):
            if (promotion := bracket.promotion()) is not None:
                return _in_bracket(promotion, number)
        behind = [(len(b.at) / w, n) for n, (b, w) in enumerate(zip(self.brackets, self.widths, strict=True)) if w]
        started, number = min(behind, default=(1.0, 0))
        if started >= 1:
            return None
        return NewTrial(steps=self.brackets[number].steps[0], reason={"rung": 0, "bracket": number})


def shares(trials: int, rungs: int, eta: int, brackets: int) -> list[int]:
    """How many of the trials each bracket gets: inversely to its average steps a configuration (ASHA paper, §5.1).

    With B = `rungs`, bracket s has B - s rungs and so takes (B - s) / eta^(B - 1 - s) of `max_steps` a configuration.
    Rounded down, and what that leaves goes where most was cut off, ties to the first.
    """
    inverse = [eta ** (rungs - 1 - s) / (rungs - s) for s in range(brackets)]
    exact = [trials * share / sum(inverse) for share in inverse]
    rest = trials - sum(map(int, exact))
    rounded_up = sorted(range(brackets), key=lambda s: (int(exact[s]) - exact[s], s))[:rest]
    return [int(share) + (s in rounded_up) for s, share in enumerate(exact)]


def _in_bracket(action: Next, number: int) -> Next:
    return replace(action, reason={**action.reason, "bracket": number})
