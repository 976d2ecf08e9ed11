"""The leaderboard of a study: the rung and the rank of each trial, and its state in words.

Tuners compare trials at rungs. The reason of a start or a promotion names the rung that it leads to. A rung ranks
trials by their result there; failed trials come last. In a study with a `rung_value`, the result at a rung is the
result of the cooldown that branches off there.

Equal results at a rung are ordered by a seeded draw, or by number. In a grid, neighbours have adjacent numbers. So
where most results are equal, the order by number promotes one corner of the grid. A draw gives equal results equal
chances. It is a hash, so replay repeats it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from app.domain.failures import failure_text
from app.domain.objectives import FAILED, Objectives, ResultScore
from app.domain.pareto_fronts import best_first
from app.domain.results import sign
from app.domain.rung_values import RUNG_AT, RungValues
from app.domain.search_plan import AVERAGE_OF, Study, Trial, TrialEvent
from app.domain.terms import StudyState, TrialDisplayState, TrialEventKind, TrialState
from stagetree.text import drawn_text, rank_text

_TRIAL_BITS = 32


@dataclass(frozen=True, slots=True)
class TieOrder:
    """The `ties` of a study. Equal results are sorted by the tie break of their trial, the least first."""

    seed: int | None = None
    """Of the draw; None to order by number."""

    @classmethod
    def from_field(cls, ties: str | None, seed: int) -> TieOrder:
        """The order that a tuner's field `ties` names. Studies of 0.1.0 lack the field and order by number."""
        return cls(seed if ties == "seed" else None)

    @property
    def is_drawn(self) -> bool:
        return self.seed is not None

    def tie_break(self, rung: int, trial: int) -> int:
        """A number that holds the draw and then the trial, so that each trial has its own."""
        return self._draw(rung, trial) << _TRIAL_BITS | trial

    def _draw(self, rung: int, trial: int) -> int:
        if self.seed is None:
            return 0
        return int.from_bytes(sha256(f"{self.seed}/ties/{rung}/{trial}".encode()).digest()[:8])


BY_NUMBER = TieOrder()


def trial_of(tie_break: int) -> int:
    """The trial that has this tie break."""
    return tie_break & ((1 << _TRIAL_BITS) - 1)


Place = tuple[int, int]
"""(bracket, rung)"""

PREDICTED = {name: name for name in ("class", "p", "expected_seconds", "target")} | {"step": "steps"}
"""The displayed fields of a tuner's prediction, and the names under which they are recorded."""
ENOUGH, FEWEST, THIRD, NEARLY_ALL = 30, 8, 1 / 3, 0.9
"""Results at a rung that are enough for hyper-parameter importance, and the fewest to display. A rung is displayed
first if it also has a third of the results of the largest rung, such as 9 of 27, or nearly all of a small one."""
UNPROVEN = ("p", "expected_seconds")
"""The fields that are not displayed before the tuner's predictions have proven right in the study."""


@dataclass(slots=True)
class RungRanking:
    """One rung, with the results of its trials."""

    bracket: int
    number: int
    steps: int
    ties: TieOrder = BY_NUMBER
    entered: int = 0
    """How many trials were sent to the rung."""
    values: dict[int, float] = field(default_factory=dict)
    """The metric by trial."""
    scores: dict[int, ResultScore] = field(default_factory=dict)
    """The score by trial, in a study with several metrics or with constraints."""
    failed: set[int] = field(default_factory=set)
    promoted: set[int] = field(default_factory=set)

    @property
    def compared(self) -> int:
        """How many trials have a rank here."""
        return len(self.values) + len(self.failed)

    def best_first(self, sign: int) -> list[int]:
        """The trials of this rung, equal ones as their tuner orders them; failed trials come last."""
        order = sorted((sign * value, self._tie_break(trial)) for trial, value in self.values.items())
        tie_breaks = [tie_break for _, tie_break in order]
        if self.scores:
            scored = ((self.scores[trial], self._tie_break(trial)) for trial in self.values)
            tie_breaks = [tie_break for _, tie_break in best_first(scored)]
        return [*map(trial_of, tie_breaks), *sorted(self.failed)]

    def _tie_break(self, trial: int) -> int:
        return self.ties.tie_break(self.number, trial)

    def result(self, trial: int) -> Hashable:
        """What a trial is ranked by; None if it has no result here."""
        return self.scores.get(trial, self.values.get(trial))

    def count_equal(self) -> Counter[Hashable]:
        """How many trials have each result."""
        return Counter(map(self.result, self.values))

    def count_tied(self) -> int:
        """How many results are equal while only some of them were promoted; of several such groups, the largest."""
        promoted = Counter(map(self.result, self.promoted))
        return max((count for result, count in self.count_equal().items() if 0 < promoted[result] < count), default=0)


@dataclass(slots=True)
class Leaderboard:
    """The rungs of a study, and the rung that each trial has reached or is training for."""

    sign: int
    ties: TieOrder = BY_NUMBER
    rungs: dict[Place, RungRanking] = field(default_factory=dict)
    at: dict[int, Place] = field(default_factory=dict)
    reasons: dict[int, Mapping[str, object]] = field(default_factory=dict)
    finishing: dict[int, Mapping[str, object]] = field(default_factory=dict)
    """The reasons for trials that `finish_best` trains to the end."""
    _ranks: dict[Place, dict[int, int]] = field(default_factory=dict)
    _equal: dict[Place, Counter[Hashable]] = field(default_factory=dict)

    def rung(self, trial: int) -> RungRanking | None:
        """The rung that the trial has reached or is training for."""
        return self.rungs.get(self.at.get(trial, (-1, -1)))

    def rank(self, trial: int) -> int | None:
        """The trial's rank at its rung, from 1; None before it has reached the rung."""
        place = self.at.get(trial)
        if place is None:
            return None
        if place not in self._ranks:
            order = self.rungs[place].best_first(self.sign)
            self._ranks[place] = {number: rank for rank, number in enumerate(order, start=1)}
        return self._ranks[place].get(trial)

    def drawn_among(self, trial: int) -> int:
        """How many equal results at its rung, with its own, a draw put in order; 0 if there is no draw."""
        place = self.at.get(trial)
        if place is None or not self.ties.is_drawn:
            return 0
        if place not in self._equal:
            self._equal[place] = self.rungs[place].count_equal()
        return self._equal[place][self.rungs[place].result(trial)]

    def ladder(self) -> list[RungRanking]:
        """All rungs, by bracket and from the bottom up."""
        return [self.rungs[place] for place in sorted(self.rungs)]

    def default_rung(self) -> int | None:
        """The rung to display first: the last one with enough results; None if there is none.

        Results at later rungs say more about the end, and rungs with more trials allow more comparisons.
        """
        most = max(self._results_by_rung().values(), default=0)
        return self._last_rung(min(ENOUGH, max(FEWEST, THIRD * most), NEARLY_ALL * most))

    def importance_rung(self) -> int | None:
        """The rung to compute hyper-parameter importance at."""
        rung = self._last_rung(ENOUGH)
        return self.default_rung() if rung is None else rung

    def _last_rung(self, enough: float) -> int | None:
        return max(
            (rung for rung, trials in self._results_by_rung().items() if trials and trials >= enough), default=None
        )

    def _results_by_rung(self) -> Counter[int]:
        """How many trials have a result, by number of the rung over all brackets."""
        reached = Counter[int]()
        for rung in self.rungs.values():
            reached[rung.number] += len(rung.values)
        return reached


def build_leaderboard(study: Study) -> Leaderboard:
    """The study's leaderboard, from its history."""
    board, rung_values = Leaderboard(sign(study), _tie_order(study)), RungValues(study.spec.tuner)
    for event in filter(None, map(rung_values.read, study.history)):
        match event.kind:
            case TrialEventKind.START | TrialEventKind.PROMOTE:
                _enter_rung(board, event)
            case TrialEventKind.RESULT | TrialEventKind.FAIL:
                _record_result(board, event, study.spec.metric, study.spec.objectives)
            case TrialEventKind.CANCEL if (rung := board.rung(event.trial)) and event.trial not in rung.promoted:
                rung.values.pop(event.trial, None)
            case TrialEventKind.STOP:
                board.reasons[event.trial] = event.reason
    return board


def _tie_order(study: Study) -> TieOrder:
    tuner = study.spec.tuner
    return TieOrder.from_field(tuner.get("ties"), tuner.get("sampling_seed", study.spec.seed))


def _enter_rung(board: Leaderboard, event: TrialEvent) -> None:
    """The trial leaves its rung and must train to the next one."""
    if "finish" in event.reason:
        board.finishing[event.trial] = event.reason
    if (number := event.reason.get("rung")) is None:
        return
    if (left := board.rung(event.trial)) is not None and event.kind == TrialEventKind.PROMOTE:
        left.promoted.add(event.trial)
    place = (int(event.reason.get("bracket", 0)), int(number))
    steps = int(event.reason.get("until", event.steps))
    board.rungs.setdefault(place, RungRanking(*place, steps=steps, ties=board.ties)).entered += 1
    board.at[event.trial] = place


def _record_result(board: Leaderboard, event: TrialEvent, metric: str, objectives: Objectives) -> None:
    rung = board.rung(event.trial)
    if rung is None:
        return
    if event.kind == TrialEventKind.FAIL:
        rung.failed.add(event.trial)
    elif event.steps == rung.steps and (value := event.metrics.get(metric)) is not None:
        rung.values[event.trial] = value
        if not objectives.is_plain:
            rung.scores[event.trial] = objectives.score(event.metrics) or FAILED


def prediction(trial: Trial, board: Leaderboard) -> Mapping[str, object] | None:
    """The tuner's last classification of a trial, with its numbers; None if it did not classify the trial.

    The probability and the expected time are None if the tuner's predictions have not proven right in the study.
    """
    stopped = board.reasons.get(trial.number, {}) if trial.state == TrialState.STOPPED else {}
    judged = stopped if "class" in stopped else trial.priority_reason
    if "class" not in judged:
        return None
    shown: dict[str, object] = {name: judged.get(field) for name, field in PREDICTED.items()}
    shown["proven"] = bool(judged.get("proven"))
    return shown if shown["proven"] else shown | dict.fromkeys(UNPROVEN)


PRUNED: TrialDisplayState = "pruned"


def display_state(study: Study, trial: Trial, board: Leaderboard) -> str:
    """The trial's state for display, except that active trials are not yet divided into waiting and running ones."""
    if _ended_at_target(study, trial):
        return TrialState.COMPLETED
    return PRUNED if _is_pruned(study, trial, board) else trial.state


def _ended_at_target(study: Study, trial: Trial) -> bool:
    """Whether an evaluation of the trial ended its study, which cancelled the rest of the trial."""
    ended = study.ending.get("by") == "target" and trial.state == TrialState.CANCELLED
    return ended and study.target_reached is not None and study.target_reached.trial == trial.number


def _is_pruned(study: Study, trial: Trial, board: Leaderboard) -> bool:
    """Whether the tuner ended the trial before its last step: by a decision, or by never promoting it."""
    if trial.state == TrialState.STOPPED:
        return True
    is_own = trial.cooldown_of is None and trial.merge_of is None
    return study.state == StudyState.COMPLETED and is_own and _awaits_tuner(study, trial, board)


def state_text(study: Study, trial: Trial, state: str, board: Leaderboard) -> str:
    """The trial's display state in words: "waits at rung 1: rank 5 of 9"."""
    text = _state_text(study, trial, state, board)
    if trial.merge_of is not None:
        return text
    parts = sorted({part["trial"] for part in trial.reason.get("average_of", ())})
    return f"{text}, from the mean of {_trials_text(parts)}" if parts else text


MOST_NAMED = 6


def _trials_text(numbers: Sequence[int]) -> str:
    """The first few numbers, and how many more there are."""
    if len(numbers) == 1:
        return f"states of trial {numbers[0]}"
    shown, more = ", ".join(map(str, numbers[:MOST_NAMED])), len(numbers) - MOST_NAMED
    return f"trials {shown}" + (f" and {more} more" if more > 0 else "")


def _state_text(study: Study, trial: Trial, state: str, board: Leaderboard) -> str:
    rung = board.rung(trial.number)
    if trial.merge_of is not None and state in MERGE_TEXTS:
        states = trial.reason[AVERAGE_OF]
        return MERGE_TEXTS[state].format(len(states), trial.merge_of, states[-1]["step"], states[0]["step"])
    if trial.cooldown_of is not None and state in COOLDOWN_TEXTS:
        return COOLDOWN_TEXTS[state].format(trial.cooldown_of, trial.reason[RUNG_AT], trial.steps)
    match state:
        case "waiting":
            return f"waits for a slot, to train to step {trial.steps}"
        case "running":
            return f"trains to step {trial.steps}" + (f", rung {rung.number}" if rung else _class_text(trial))
        case "pruned" if rung and trial.state != TrialState.STOPPED:
            return f"pruned at rung {rung.number}: {_rank(study, board, rung, trial)}, {len(rung.promoted)} promoted"
        case "pruned":
            return f"pruned after step {trial.steps}{_reason_text(board.reasons.get(trial.number, {}))}"
        case TrialState.COMPLETED if study.target_reached is not None and _ended_at_target(study, trial):
            return f"trained to step {study.target_reached.steps}: the target is reached"
        case TrialState.COMPLETED if rung and _can_be_extended(study, trial):
            where = f"{'ended' if study.is_final else 'waits'} at rung {rung.number}"
            return f"{where}: {_rank(study, board, rung, trial)}"
        case TrialState.COMPLETED if _can_be_extended(study, trial) and not study.is_final and _class_text(trial):
            return f"suspended after step {trial.steps}{_class_text(trial)}"
        case TrialState.COMPLETED:
            ranked = f", ranked{_cooldown_text(study)}" if rung and _cooldown_text(study) else ""
            return f"trained to step {trial.steps}{_finish_text(board.finishing.get(trial.number))}{ranked}"
        case TrialState.CANCELLED:
            return "cancelled"
        case TrialState.FAILED:
            return failure_text(trial)
    return str(state)


def is_waiting_at_rung(study: Study, trial: Trial, board: Leaderboard) -> bool:
    """Whether the trial waits for a decision of its tuner, at a rung or suspended."""
    return not study.is_final and _awaits_tuner(study, trial, board)


def _awaits_tuner(study: Study, trial: Trial, board: Leaderboard) -> bool:
    """Whether only its tuner can let the trial train on."""
    is_judged = board.rung(trial.number) is not None or bool(_class_text(trial))
    return trial.state == TrialState.COMPLETED and is_judged and _can_be_extended(study, trial)


def _finish_text(reason: Mapping[str, object] | None) -> str:
    """The suffix for a trial that `finish_best` trained to the end."""
    return f" after all: rank {reason['finish']} of {reason['of']} that had ended early" if reason else ""


def _class_text(trial: Trial) -> str:
    """The tuner's class of the trial, if it classifies trials."""
    return f", {trial.priority_reason['class']}" if "class" in trial.priority_reason else ""


def _can_be_extended(study: Study, trial: Trial) -> bool:
    return study.spec.max_steps is None or trial.steps < study.spec.max_steps


def _rank(study: Study, board: Leaderboard, rung: RungRanking, trial: Trial) -> str:
    rank = board.rank(trial.number)
    ranked = f"rank {rank} of {rung.compared}" if rank else "no rank"
    return f"{ranked}{_cooldown_text(study)}{drawn_text(board.drawn_among(trial.number))}"


def _cooldown_text(study: Study) -> str:
    """The suffix for ranks by the result of a cooldown or a merge instead of the trial's own."""
    if study.spec.merges_at_rungs:
        return " by the mean of its last states"
    return " by its cooldown" if "rung_value" in study.spec.tuner else ""


COOLDOWN_TEXTS = {
    "waiting": "waits for a slot, to cool trial {} down from step {} to {}",
    "running": "cools trial {} down from step {} to {}",
    TrialState.COMPLETED: "cooled trial {} down from step {} to {}",
}
"""The state of a cooldown, with its trunk, its first and its last step."""

MERGE_TEXTS = {
    "waiting": "waits for a slot, to evaluate the mean of {} states of trial {} from step {} to {}",
    "running": "evaluates the mean of {} states of trial {} from step {} to {}",
    TrialState.COMPLETED: "the mean of {} states of trial {} from step {} to {}",
}
"""The state of a merge, with the number of its states, their trial, and the first and the last step."""


def decisions(study: Study, number: int) -> list[str]:
    """The tuner's decisions on a trial after its start, in words. Promotions without a recorded reason are left out."""
    texts = []
    for event in study.history:
        if event.trial == number and event.kind == TrialEventKind.STOP:
            texts.append(f"pruned after step {event.steps}{_reason_text(event.reason)}")
        elif event.trial == number and event.kind == TrialEventKind.PROMOTE:
            texts += [
                f"asked for step {event.steps}{why}" for why in (_reason_text(event.reason, is_promotion=True),) if why
            ]
    return texts


def _reason_text(reason: Mapping[str, object], *, is_promotion: bool = False) -> str:
    """The recorded reason for stopping or continuing a trial."""
    if ranked := rank_text(reason):
        return f": {ranked}"
    if {"best", "median"} <= reason.keys():
        worse = "no worse" if is_promotion else "worse"
        return f": its best {_number(reason['best'])} is {worse} than the median {_number(reason['median'])}"
    if {"best", "best_of_all"} <= reason.keys() and not is_promotion:
        return f": its best {_number(reason['best'])} is too far from the best of all, {_number(reason['best_of_all'])}"
    if "p" in reason and not is_promotion:
        return f": it is unlikely to reach {_number(reason.get('target', reason.get('best_of_all')))}, p {reason['p']}"
    if "kill_threshold" in reason and not is_promotion:
        return f": {_number(reason['value'])} is worse than the threshold {_number(reason['kill_threshold'])}"
    return END_TEXTS.get(str(reason.get("over")), "")


END_TEXTS = {"target": ": the target is reached", "time": ": time is up"}


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
