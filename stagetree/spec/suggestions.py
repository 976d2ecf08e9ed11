"""Suggested configurations and earlier studies to learn from, and which tuners take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BeforeValidator, Field

from stagetree.sequences import SequenceError, parse
from stagetree.space.distinct import UniqueSamples
from stagetree.space.suggestions import DRAWS, sample_suggestion, suggested_values
from stagetree.spec.errors import FieldError, join_path
from stagetree.spec.fields import Text, as_json, as_named
from stagetree.spec.tuners import HyperbandTuner, SamplingTuner, TunerSpec
from stagetree.spec.tuners.base import TunedStudy

MOST_SUGGESTIONS = 1000
"""How many a study file may list."""

Suggestion = Annotated[dict[str, Annotated[Any, AfterValidator(as_json)]], BeforeValidator(as_named)]
Suggestions = Annotated[list[Suggestion], Field(max_length=MOST_SUGGESTIONS)]

MOST_STUDIES = 20
TRANSFER_SAMPLERS = ("tpe", "gp", "trunks")
"""Samplers that learn from other studies. `cmaes` cannot: it updates a distribution from its own samples."""

LearnFrom = Annotated[list[Text], Field(max_length=MOST_STUDIES)]


class SuggestedStudy(TunedStudy, Protocol):
    """The fields of a study that suggestions depend on."""

    @property
    def suggestions(self) -> list[dict[str, Any]]: ...
    @property
    def learn_from(self) -> list[str]: ...
    @property
    def sampler(self) -> str: ...
    @property
    def tuner(self) -> Any: ...


def check_learn_from(spec: SuggestedStudy) -> None:
    """Raise `FieldError` if the sampler cannot learn from these studies."""
    if spec.learn_from and spec.sampler not in TRANSFER_SAMPLERS:
        samplers = ", ".join(TRANSFER_SAMPLERS)
        text = f"must be left out, or the tuner's sampler be one of {samplers}: no other learns from studies"
        raise FieldError("learn_from", text)
    repeated = next((each for each in spec.learn_from if spec.learn_from.count(each) > 1), None)
    if repeated is not None:
        raise FieldError("learn_from", f"must name each study once, got {repeated} twice or more")


def check_suggestions(spec: SuggestedStudy) -> None:
    """Raise `FieldError` for suggestions that the tuner does not take, too many, or not in the space."""
    if not spec.suggestions:
        return
    if (problem := refusal_reason(spec.tuner)) is not None:
        raise FieldError("suggestions", f"must be left out: {problem}")
    most = sampled_count(spec.tuner)
    if most is not None and len(spec.suggestions) > most:
        raise FieldError("suggestions", f"must be at most the {most} trials of the study, got {len(spec.suggestions)}")
    check_configurations(spec, spec.suggestions)


def check_configurations(
    spec: SuggestedStudy,
    suggestions: Sequence[Mapping[str, Any]],
    earlier: Iterable[Mapping[str, Any]] = (),
    before: int = 0,
) -> None:
    """Raise `FieldError` if suggestions are not in the space or can only repeat existing trials.

    earlier: the hyper-parameters of the study's trials, as JSON. before: how many suggestions the study already has.
    """
    space, distinct = spec.search_space, _existing(spec, earlier)
    for number, suggestion in enumerate(suggestions):
        place = f"suggestions[{number}]"
        try:
            key, values = suggestion_key(spec.sampling_seed, before + number), suggested_values(space, suggestion)
            draws = sample_suggestion(space, key, values)
            first = next(draws, None)
        except SequenceError as error:
            raise FieldError(join_path(place, error.field), error.problem) from None
        if first is None:
            text = f"must be a part of a configuration of the space: none of {DRAWS} draws of the rest is one"
            raise FieldError(place, text)
        if distinct is not None and not any(distinct.is_new(draw[1]) for draw in chain([first], draws)):
            raise FieldError(place, "must leave a configuration that no trial of the study has: none is drawn twice")


def _existing(spec: SuggestedStudy, earlier: Iterable[Mapping[str, Any]]) -> UniqueSamples | None:
    """The configurations of the study's trials; None if trials may repeat."""
    if not spec.tuner.distinct:
        return None
    trials = ({name: parse(value) for name, value in hp.items()} for hp in earlier)
    return UniqueSamples(spec.search_space, getattr(spec.tuner, "max_steps", None), trials)


def suggestion_key(seed: int, number: int) -> str:
    """The key from which the rest of a suggestion is sampled."""
    return f"{seed}/suggestion/{number}"


def refusal_reason(tuner: TunerSpec) -> str | None:
    """Why a tuner takes no suggestions, as a sentence; None if it takes them."""
    match tuner.kind:  # type: ignore[attr-defined]
        case "pbt":
            return "the members of pbt change their configurations, so none is a configuration of a whole trial"
        case "random":
            return "random names all its trials at once: list configurations in its first, or take asha with one rung"
        case kind if not isinstance(tuner, SamplingTuner):
            return f"the study file lists the trials of {kind}: add a trial of your own to it"
    return None


def sampled_count(tuner: Any) -> int | None:
    """How many configurations a tuner takes from its sampler; None if unlimited."""
    if isinstance(tuner, HyperbandTuner):
        return sum(tuner.widths()) * tuner.loops
    number: int | None = getattr(tuner, "num_trials", None)
    return number
