"""A study's search: results learned from other studies, suggestions and their price, and the state of its sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from app.domain import commands as c
from app.domain.decide import decide, price_of
from app.domain.pricing import Price
from app.domain.sampler_inputs import SUGGESTION, ResultsLearned, learned_text
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import ANONYMOUS_ADMIN, Principal, StateConflict, StudyId, Unknown
from app.events import StudyRecord
from app.search.tuners import (
    Knowledge,
    NothingToLearn,
    Proposal,
    TunerDriver,
    TunerFailed,
    context_of,
    results_for,
    sampler_of,
)
from app.service.services import InvalidField, Services, Write
from stagetree.limits import Limits
from stagetree.models.trials import Branch, Proposed, SamplerState, Suggestion, Suggestions
from stagetree.sequences import SequenceError
from stagetree.space.suggestions import suggested_values, whole_suggestion
from stagetree.spec import Problem, SpecError, StudySpec
from stagetree.spec.suggestions import check_configurations, refusal_reason, sampled_count

Json = dict[str, Any]


def suggest(
    use: Services, row: StudyRecord, write: Write, configurations: Sequence[Json], who: Principal = ANONYMOUS_ADMIN
) -> Suggestions:
    """Enqueue whole or partial configurations as the tuner's next trials: all of them, or none.

    Raises `StateConflict` if the tuner has no room for them, `InvalidField` for values outside the space.
    """
    command = c.SuggestConfigurations(
        study=StudyId(row.id), configurations=tuple(configurations), at=use.clock(), by=who.signature
    )

    def decide_and_check(plan: SearchPlan) -> Any:
        events = decide(plan, command, use.limits)
        check_suggestions(plan.studies[command.study], command)
        return events

    recorded = write(row.stream, decide_and_check)
    with use.open_study(row) as (_, study):
        return Suggestions(items=_all_suggestions(study)[-len(recorded) :])


def price(use: Services, row: StudyRecord, configurations: Sequence[Json]) -> Branch:
    """The steps that these configurations would cost at most, trained to the study's end.

    A partial configuration counts whole, since its sampler chooses the rest later. Raises as `suggest`.
    """
    command = c.SuggestConfigurations(study=StudyId(row.id), configurations=tuple(configurations), at=use.clock())
    with use.open_study(row) as (plan, study):
        decide(plan, command, use.limits)
        check_suggestions(study, command)
        prices = [_price_of_suggestion(plan, study, each, use.limits) for each in configurations]
    return Branch(**{name: sum(getattr(each, name) for each in prices) for name in ("steps", "shared", "new", "again")})


def _price_of_suggestion(plan: SearchPlan, study: Study, configuration: Json, limits: Limits) -> Price:
    space, steps = StudySpec(**study.spec.json).search_space, study.spec.max_steps or 0
    whole = whole_suggestion(space, suggested_values(space, configuration))
    if whole is None:
        every = steps * study.spec.repeats[0]
        return Price(steps=every, shared=0, new=every, again=0)
    hp = {name: sequence.to_json() for name, sequence in whole[1].items()}
    return price_of(plan, c.AddTrial(study=study.id, hp=hp, steps=steps), limits)


def withdraw(use: Services, row: StudyRecord, write: Write, suggestion: int, who: Principal = ANONYMOUS_ADMIN) -> None:
    """Withdraw a suggestion. Raises `Unknown`, and `StateConflict` if its trial has begun."""
    command = c.WithdrawSuggestion(study=StudyId(row.id), suggestion=suggestion, at=use.clock(), by=who.signature)
    write(row.stream, lambda plan: decide(plan, command, use.limits))


def suggestions(use: Services, row: StudyRecord, at: int | None = None) -> Suggestions:
    """A study's suggestions, now or at an event, with their trials."""
    with use.open_study(row, at) as (_, study):
        return Suggestions(items=_all_suggestions(study))


def sampler_state(use: Services, row: StudyRecord, at: int | None = None) -> SamplerState:
    """The results that the study's sampler has, now or at an event, and its next proposal. Raises `StateConflict`.

    It follows from the log alone. The plan is unlocked while the sampler computes.
    """
    with use.open_study(row, at) as (plan, study):
        spec = StudySpec(**study.spec.json)
        try:
            driver = TunerDriver(study.spec.json)
            context = context_of(plan, study, study.submitted_at, 1)
            driver.observe(study, replace(context, tree=lambda: context.tree().copy()))
        except TunerFailed as problem:
            raise StateConflict(f"study {row.id}: {problem}") from None
        learned = [learned_text(each) for each in study.learned]
        most = sampled_count(spec.tuner)
        budget = [] if most is None else [f"{len(study.trials):,} of {most:,} trials have begun"]
        if spec.max_total_steps is not None:
            budget.append(f"{study.executed:,} steps of its max_total_steps {spec.max_total_steps:,} are trained")
        refuses = "it is over" if study.finished_at is not None else _refusal_reason(study, spec, 1)
    try:
        knowledge, proposal = driver.next_proposal()
    except TunerFailed as problem:
        raise StateConflict(f"study {row.id}: {problem}") from None
    return SamplerState(
        sampler=getattr(spec.tuner, "sampler", ""),
        step=None if knowledge is None else knowledge.step,
        results=None if knowledge is None else knowledge.results,
        next=None if proposal is None else Proposed(hp=dict(proposal.hp), reason=dict(proposal.reason)),
        text=[*_knowledge_texts(spec, knowledge), *learned, *budget, *_next_texts(proposal)],
        refuses=refuses,
    )


def _knowledge_texts(spec: StudySpec, knowledge: Knowledge | None) -> Iterator[str]:
    sampler = getattr(spec.tuner, "sampler", "")
    if not sampler:
        yield f"the tuner {spec.tuner.kind} asks no sampler: the study file, or a user, says what its trials are"
    elif knowledge is None:
        yield f"{sampler} uses no results"
    else:
        where = "at the last step of each trial" if knowledge.step is None else f"at step {knowledge.step}"
        count = f"{knowledge.results} result{'' if knowledge.results == 1 else 's'} {where}"
        chance = f"draws at random until it has {knowledge.enough} results, and has"
        yield f"{sampler} {'models' if knowledge.results >= knowledge.enough else chance} {count}"


def _next_texts(proposal: Proposal | None) -> Iterator[str]:
    if proposal is None:
        yield "there is no next trial: no configuration is left, or the tuner requests none"
    elif (suggestion := proposal.reason.get(SUGGESTION)) is not None:
        yield f"suggestion {suggestion} takes the next place"
    elif (price := proposal.reason.get("price")) is not None:
        yield f"the next one would cost {price} steps"


def _all_suggestions(study: Study) -> list[Suggestion]:
    trials = study.trials_by_suggestion()
    return [
        Suggestion(
            suggestion=number,
            hp=each.hp,
            by=each.by,
            at=each.at,
            trial=trials.get(number),
            withdrawn_at=study.withdrawn.get(number),
        )
        for number, each in enumerate(study.suggestions)
    ]


def check_suggestions(study: Study, command: c.SuggestConfigurations) -> None:
    """Raise `StateConflict` if the tuner has no room for them, `InvalidField` for values outside the space."""
    spec = StudySpec(**study.spec.json)
    if problem := _refusal_reason(study, spec, len(command.configurations)):
        raise StateConflict(f"study {study.id} does not take the suggestions: {problem}")
    try:
        earlier = [trial.hp for trial in study.trials]
        check_configurations(spec, command.configurations, earlier, len(study.suggestions))
    except SequenceError as error:
        raise InvalidField(error.field, error.problem) from None


def _refusal_reason(study: Study, spec: StudySpec, number: int) -> str:
    """Why a study takes no `number` further suggestions; empty if it does."""
    if (problem := refusal_reason(spec.tuner)) is not None:
        return problem
    sampler = sampler_of(spec)
    counted = [
        most for most in (sampled_count(spec.tuner), None if sampler is None else sampler.size()) if most is not None
    ]
    begun = sum(trial.reason.get("by") == "tuner" and trial.trunk is None for trial in study.trials)
    waiting = len(study.open_suggestions()) - len(study.trials_by_suggestion())
    if not counted or number <= (left := max(0, min(counted) - begun - waiting)):
        return ""
    places_left = f"it has {left} places left, got {number}" if left else "it has no place left"
    state = f"{begun} of its {min(counted)} trials have begun, and {waiting} suggestions wait"
    return f"{places_left}: {state}; reopen it with more trials when it is over, or add a trial of your own"


def learn_results(
    use: Services, spec: StudySpec, study: StudyId, who: Principal = ANONYMOUS_ADMIN
) -> tuple[ResultsLearned, ...]:
    """The results that a new study learns from each study in `learn_from`. Raises `SpecError`."""
    learned = []
    for number, other in enumerate(spec.learn_from):
        field = f"learn_from[{number}]"
        try:
            row = use.find(other, who)
            with use.open_study(row) as (_, source):
                results, left_out = results_for(spec, source)
        except Unknown as problem:
            raise SpecError([Problem(field, f"must be the id of a study on this server: {problem}")]) from None
        except NothingToLearn as problem:
            raise SpecError([Problem(field, str(problem))]) from None
        source_id, at = StudyId(row.id), use.clock()
        learned.append(ResultsLearned(study=study, source=source_id, results=results, left_out=left_out, at=at))
    return tuple(learned)
