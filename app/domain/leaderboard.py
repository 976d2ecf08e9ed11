"""Where the trials of a study stand: at which rung, at which rank, and what their state means, in a few words.

A rung is where a tuner compares trials: the reason of a start or a promotion names the rung it leads to. Ranks are by
the result that a trial had when it came to the rung; a trial that failed on the way comes last. Where a study has a
`rung_value`, the result at a rung is that of the cooldown which was branched off there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.cooldowns import AT, Cooldowns
from app.domain.failures import failure_text
from app.domain.objectives import FAILED, Objectives, ResultScore
from app.domain.pareto_fronts import best_first
from app.domain.results import sign
from app.domain.search_plan import Study, Trial, TrialEvent
from app.domain.terms import StudyState, TrialEventKind, TrialState
from stagetree.text import rank_text

Place = tuple[int, int]
"""(bracket, rung)"""

PREDICTED = {name: name for name in ("class", "p", "expected_seconds", "target")} | {"step": "steps"}
"""What is shown of a judgement, and under which name it was recorded."""
ENOUGH, FEWEST, THIRD, NEARLY_ALL = 30, 8, 1 / 3, 0.9
"""So many results at a rung are enough to ask what they depend on. To look at, a few are, if they are a third of the
most that any rung has, such as nine of 27, which trained three times as long; or nearly all, where no rung has more."""
UNPROVEN = ("p", "expected_seconds")
"""What is not shown of it before it is proven in the study."""


@dataclass(slots=True)
class RungRanking:
    """One rung: the steps it stands at, how many trials were sent there, their values by trial, and who went on.

    scores: of the same trials, in a study with several metrics, or constraints.
    """

    bracket: int
    number: int
    steps: int
    entered: int = 0
    values: dict[int, float] = field(default_factory=dict)
    scores: dict[int, ResultScore] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    promoted: set[int] = field(default_factory=set)

    @property
    def compared(self) -> int:
        """How many trials have a rank here."""
        return len(self.values) + len(self.failed)

    def best_first(self, sign: int) -> list[int]:
        """The trials that came here, ties to the lower number, those that failed on the way last."""
        order = sorted(self.values, key=lambda trial: (sign * self.values[trial], trial))
        if self.scores:
            order = [trial for _, trial in best_first((self.scores[trial], trial) for trial in self.values)]
        return [*order, *sorted(self.failed)]


@dataclass(slots=True)
class Leaderboard:
    """The rungs of a study, and the rung at which, or on the way to which, each trial is.

    finishing: why trials were sent on to the end when the tuner was done.
    """

    sign: int
    rungs: dict[Place, RungRanking] = field(default_factory=dict)
    at: dict[int, Place] = field(default_factory=dict)
    reasons: dict[int, Mapping[str, object]] = field(default_factory=dict)
    finishing: dict[int, Mapping[str, object]] = field(default_factory=dict)
    _ranks: dict[Place, dict[int, int]] = field(default_factory=dict)

    def rung(self, trial: int) -> RungRanking | None:
        """The rung at which the trial is, or to which it is on its way."""
        return self.rungs.get(self.at.get(trial, (-1, -1)))

    def rank(self, trial: int) -> int | None:
        """The trial's rank at its rung, from 1; None as long as it has not come there."""
        place = self.at.get(trial)
        if place is None:
            return None
        if place not in self._ranks:
            order = self.rungs[place].best_first(self.sign)
            self._ranks[place] = {number: rank for rank, number in enumerate(order, start=1)}
        return self._ranks[place].get(trial)

    def ladder(self) -> list[RungRanking]:
        """All rungs, by bracket and from the bottom up."""
        return [self.rungs[place] for place in sorted(self.rungs)]

    def default_rung(self) -> int | None:
        """The number of the rung whose results are looked at first: the furthest with so many; None before any.

        The further a rung, the more a result there says of the end; the more trials it has, the more can be compared.
        """
        most = max(self._reached().values(), default=0)
        return self._furthest(min(ENOUGH, max(FEWEST, THIRD * most), NEARLY_ALL * most))

    def importance_rung(self) -> int | None:
        """The number of the rung at which one asks what results depend on; without enough, the `telling` one."""
        found = self._furthest(ENOUGH)
        return self.default_rung() if found is None else found

    def _furthest(self, enough: float) -> int | None:
        return max((rung for rung, trials in self._reached().items() if trials and trials >= enough), default=None)

    def _reached(self) -> Counter[int]:
        """How many trials have a result, by the number of a rung in any bracket."""
        reached = Counter[int]()
        for rung in self.rungs.values():
            reached[rung.number] += len(rung.values)
        return reached


def standing(study: Study) -> Leaderboard:
    """How the study's trials stand, from its history."""
    stands, cooldowns = Leaderboard(sign(study)), Cooldowns(study.tuner)
    for event in filter(None, map(cooldowns.read, study.history)):
        match event.kind:
            case TrialEventKind.START | TrialEventKind.PROMOTE:
                _send(stands, event)
            case TrialEventKind.RESULT | TrialEventKind.FAIL:
                _arrive(stands, event, study.metric, study.objectives)
            case TrialEventKind.CANCEL if (rung := stands.rung(event.trial)) and event.trial not in rung.promoted:
                rung.values.pop(event.trial, None)
            case TrialEventKind.STOP:
                stands.reasons[event.trial] = event.reason
    return stands


def _send(stands: Leaderboard, event: TrialEvent) -> None:
    """The trial is asked to train as far as a rung: it leaves the one below."""
    if "finish" in event.reason:
        stands.finishing[event.trial] = event.reason
    if (number := event.reason.get("rung")) is None:
        return
    if (left := stands.rung(event.trial)) is not None and event.kind == TrialEventKind.PROMOTE:
        left.promoted.add(event.trial)
    place = (int(event.reason.get("bracket", 0)), int(number))
    steps = int(event.reason.get("until", event.steps))
    stands.rungs.setdefault(place, RungRanking(*place, steps=steps)).entered += 1
    stands.at[event.trial] = place


def _arrive(stands: Leaderboard, event: TrialEvent, metric: str, objectives: Objectives) -> None:
    rung = stands.rung(event.trial)
    if rung is None:
        return
    if event.kind == TrialEventKind.FAIL:
        rung.failed.add(event.trial)
    elif event.steps == rung.steps and (value := event.metrics.get(metric)) is not None:
        rung.values[event.trial] = value
        if not objectives.is_plain:
            rung.scores[event.trial] = objectives.score(event.metrics) or FAILED


def prediction(trial: Trial, stands: Leaderboard) -> Mapping[str, object] | None:
    """What the tuner took a trial for when it judged it last, with its numbers; None if it never did.

    The probability, and the time that follows from it, are None where they were not proven in the study.
    """
    stopped = stands.reasons.get(trial.number, {}) if trial.state == TrialState.STOPPED else {}
    judged = stopped if "class" in stopped else trial.priority_reason
    if "class" not in judged:
        return None
    shown: dict[str, object] = {name: judged.get(field) for name, field in PREDICTED.items()}
    shown["proven"] = bool(judged.get("proven"))
    return shown if shown["proven"] else shown | dict.fromkeys(UNPROVEN)


def meaning(study: Study, trial: Trial, state: str, stands: Leaderboard) -> str:
    """What the trial's shown state means, for people: "waits at rung 1: rank 5 of 9"."""
    text = _meaning(study, trial, state, stands)
    parts = sorted({part["trial"] for part in trial.reason.get("average_of", ())})
    return f"{text}, from the mean of {_trials(parts)}" if parts else text


NAMED = 6


def _trials(numbers: Sequence[int]) -> str:
    """The first of them by number, and how many more there are."""
    if len(numbers) == 1:
        return f"states of trial {numbers[0]}"
    shown, more = ", ".join(map(str, numbers[:NAMED])), len(numbers) - NAMED
    return f"trials {shown}" + (f" and {more} more" if more > 0 else "")


def _meaning(study: Study, trial: Trial, state: str, stands: Leaderboard) -> str:
    rung = stands.rung(trial.number)
    if trial.cooldown_of is not None and state in COOLING:
        return COOLING[state].format(trial.cooldown_of, trial.reason[AT], trial.steps)
    match state:
        case "waiting":
            return f"waits for a slot, to train to step {trial.steps}"
        case "running":
            return f"trains to step {trial.steps}" + (f", rung {rung.number}" if rung else _class(trial))
        case TrialState.COMPLETED if rung and _could_go_on(study, trial):
            rested = "stayed" if study.is_final else "waits"
            return f"{rested} at rung {rung.number}: {_rank(stands, rung, trial)}{_by(study)}{_cut(study, rung)}"
        case TrialState.COMPLETED if _could_go_on(study, trial) and not study.is_final and _class(trial):
            return f"suspended after step {trial.steps}{_class(trial)}"
        case TrialState.COMPLETED:
            ranked = f", ranked{_by(study)}" if rung and _by(study) else ""
            return f"trained to step {trial.steps}{_finished(stands.finishing.get(trial.number))}{ranked}"
        case TrialState.STOPPED:
            return f"stopped after step {trial.steps}{_why(stands.reasons.get(trial.number, {}))}"
        case TrialState.CANCELLED:
            return "cancelled"
        case TrialState.FAILED:
            return failure_text(trial)
    return str(state)


def is_waiting_at_rung(study: Study, trial: Trial, stands: Leaderboard) -> bool:
    """Whether the trial waits for its tuner, at a rung or suspended: it may be asked for more, or not."""
    is_judged = stands.rung(trial.number) is not None or bool(_class(trial))
    return trial.state == TrialState.COMPLETED and is_judged and not study.is_final and _could_go_on(study, trial)


def _finished(reason: Mapping[str, object] | None) -> str:
    """That a trial was trained to the end by `finish_best`."""
    return f" after all: rank {reason['finish']} of {reason['of']} that had ended early" if reason else ""


def _class(trial: Trial) -> str:
    """What the tuner takes the trial for, if it classifies trials."""
    return f", {trial.priority_reason['class']}" if "class" in trial.priority_reason else ""


def _could_go_on(study: Study, trial: Trial) -> bool:
    return study.max_steps is None or trial.steps < study.max_steps


def _rank(stands: Leaderboard, rung: RungRanking, trial: Trial) -> str:
    rank = stands.rank(trial.number)
    return f"rank {rank} of {rung.compared}" if rank else "no rank"


def _by(study: Study) -> str:
    """What ranks are by, where it is not the trial's own result."""
    return " by its cooldown" if "rung_value" in study.tuner else ""


COOLING = {
    "waiting": "waits for a slot, to cool trial {} down from step {} to {}",
    "running": "cools trial {} down from step {} to {}",
    TrialState.COMPLETED: "cooled trial {} down from step {} to {}",
}
"""What a cooldown does, with its trial, where it begins, and where it ends."""


def _cut(study: Study, rung: RungRanking) -> str:
    """How many went on, of a study that is completed."""
    if study.state != StudyState.COMPLETED:
        return ""
    return f", {len(rung.promoted)} promoted"


def decisions(study: Study, number: int) -> list[str]:
    """The decisions about a trial after its start, in order, with the reasons, for people.

    That it was asked for more is left out where no reason is on record.
    """
    said = []
    for event in study.history:
        if event.trial == number and event.kind == TrialEventKind.STOP:
            said.append(f"stopped after step {event.steps}{_why(event.reason)}")
        elif event.trial == number and event.kind == TrialEventKind.PROMOTE:
            said += [f"asked for step {event.steps}{why}" for why in (_why(event.reason, goes_on=True),) if why]
    return said


def _why(reason: Mapping[str, object], *, goes_on: bool = False) -> str:
    """Why the tuner stopped a trial, or let it continue."""
    if ranked := rank_text(reason):
        return f": {ranked}"
    if {"best", "median"} <= reason.keys():
        worse = "no worse" if goes_on else "worse"
        return f": its best {_number(reason['best'])} is {worse} than the median {_number(reason['median'])}"
    if {"best", "best_of_all"} <= reason.keys() and not goes_on:
        return f": its best {_number(reason['best'])} is too far from the best of all, {_number(reason['best_of_all'])}"
    if "p" in reason and not goes_on:
        return f": it is unlikely to reach {_number(reason.get('target', reason.get('best_of_all')))}, p {reason['p']}"
    if "kill_threshold" in reason and not goes_on:
        return f": {_number(reason['value'])} is worse than the threshold {_number(reason['kill_threshold'])}"
    return OVER.get(str(reason.get("over")), "")


OVER = {"target": ": the target is reached", "time": ": time is up"}


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
