"""Hyperband (Li et al. 2018) as brackets of SHA, and asynchronous Hyperband (ASHA paper, §5.1) as brackets of ASHA."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.base import NewTrial, Next, Tuner
from app.search.tuners.rungs import rung_maker
from app.search.tuners.sha import Bracket, SyncBracket
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import bracket_sizes


class _Brackets(Tuner):
    """Several brackets in one study. Every reason names its bracket, so that the history assigns trials to brackets."""

    takes_objectives = True

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        self.brackets: list[Any] = []
        self._bracket_of: dict[int, int] = {}

    def observe(self, event: TrialEvent) -> None:
        if event.kind == TrialEventKind.START:
            self._bracket_of[event.trial] = event.reason["bracket"]
        self.brackets[self._bracket_of[event.trial]].observe(event, self.key(event))


class Hyperband(_Brackets):
    """Synchronous successive halving in every bracket, from the most aggressive one to plain random search.

    Bracket s begins with ceil((s_max + 1) * eta^(s_max - s) / (s_max - s + 1)) configurations, so that all brackets
    take about the same number of steps (Hyperband, Algorithm 1; s counts as in the ASHA paper, from the most
    aggressive). All brackets run at once, because they do not depend on each other. Rungs are counted down from
    `max_steps`. With `loops`, all is repeated with new configurations, each loop after the one before.
    """

    eager = True

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        eta = tuner.reduction_factor
        brackets = [*zip(tuner.widths(), tuner.ladders(), strict=True)]
        self._in_a_loop = len(brackets)
        for width, steps in brackets * tuner.loops:
            self.brackets.append(SyncBracket(width, steps, eta, rung_maker(spec)))

    def set_max_trials(self, trials: int) -> None:
        for bracket in self.brackets:
            bracket.width = min(bracket.width, trials)
            trials -= bracket.width

    def suggest(self) -> Next | None:
        """Configurations of all brackets first, so that actions granted together do not depend on results."""
        loop = self._loop()
        starts = ((bracket.start(), number) for number, bracket in loop)
        promotions = ((bracket.promotion(), number) for number, bracket in loop)
        actions = ((action, number) for action, number in chain(starts, promotions) if action is not None)
        return next((_tag_bracket(action, number) for action, number in actions), None)

    def _loop(self) -> list[tuple[int, SyncBracket]]:
        """The brackets of the first unfinished loop, or of the last one, with their numbers."""
        numbered = list(enumerate(self.brackets))
        loops = [numbered[first : first + self._in_a_loop] for first in range(0, len(numbered), self._in_a_loop)]
        return next((loop for loop in loops if not all(bracket.is_over for _, bracket in loop)), loops[-1])


class AsyncHyperband(_Brackets):
    """ASHA in several brackets at once, the most aggressive first.

    Configurations are divided so that all brackets take the same number of steps. A free slot takes a promotion if any
    bracket has one, the most aggressive first; otherwise a new configuration goes to the bracket furthest behind its
    share.

    As in the ASHA paper, §5.1, `async_hyperband` has eta 4, at most five rungs, and the three most aggressive brackets
    by default. These get 70.5, 22.1 and 7.1 % of the configurations. Its rungs are counted down from `max_steps`, and
    those of `asha` in several brackets up from `min_steps`.
    """

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        ladders = tuner.ladders()
        self._trials, self._rungs, self._eta = tuner.num_trials, len(ladders[0]), tuner.reduction_factor
        self.brackets = [Bracket(steps, self._eta, rung_maker(spec)) for steps in ladders]
        self.set_max_trials(tuner.num_trials)

    def set_max_trials(self, trials: int) -> None:
        trials = min(trials, self._trials)
        self.widths = bracket_sizes(trials, self._rungs, self._eta, len(self.brackets))

    def suggest(self) -> Next | None:
        for number, bracket in enumerate(self.brackets):
            if (promotion := bracket.promotion()) is not None:
                return _tag_bracket(promotion, number)
        behind = [(len(b.rung_of) / w, n) for n, (b, w) in enumerate(zip(self.brackets, self.widths, strict=True)) if w]
        started, number = min(behind, default=(1.0, 0))
        if started >= 1:
            return None
        return NewTrial(steps=self.brackets[number].steps[0], reason={"rung": 0, "bracket": number})


def _tag_bracket(action: Next, number: int) -> Next:
    return replace(action, reason={**action.reason, "bracket": number})
