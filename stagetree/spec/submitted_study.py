"""The fields and methods of a study that concern its submission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from stagetree.space import Space
from stagetree.spec.errors import FieldError, Problem, SpecError
from stagetree.spec.fields import SpecModel
from stagetree.spec.suggestions import (
    LearnFrom,
    Suggestions,
    check_learn_from,
    check_suggestions,
    learn_from_field,
    suggestions_field,
)
from stagetree.spec.tuners import FixedTuner

FILLED_IN = ("sampling_seed", "ties")
"""The fields of a tuner that get a value at the submission of a study, if it has them and its user set none."""


class SubmittedStudy(SpecModel):
    """The part of a study that concerns how it is submitted."""

    suggestions: Suggestions = suggestions_field()
    learn_from: LearnFrom = learn_from_field()

    if TYPE_CHECKING:
        tuner: Any
        value: Any
        repeats: Any
        target: Any
        target_at: Any

        @property
        def search_space(self) -> Space: ...
        @property
        def sampling_seed(self) -> int: ...

        def to_json(self) -> dict[str, Any]: ...

    def check_beginning(self) -> None:
        """Raise `FieldError` for suggestions that the tuner cannot take, or studies that it cannot learn from."""
        check_suggestions(self)
        check_learn_from(self)

    def check_target(self) -> None:
        """Raise `FieldError` if evaluations cannot reach the target."""
        if self.target_at == "evaluations" and (problem := self._evaluations_problem()):
            raise FieldError("target_at", f"must be results {problem}, got evaluations")

    def _evaluations_problem(self) -> str:
        """Why evaluations cannot reach the target; empty if they can: then the state of each new best one is kept."""
        if self.value != "best":
            return "without value: best, which keeps the state of the best evaluation"
        if self.repeats != 1:
            return "with repeats: no evaluation of one run is their mean"
        if getattr(self.tuner, "rung_value", None) is not None:
            return "with tuner.rung_value: trials go by values of their own at rungs"
        return ""

    def fill_in(self, sampling_seed: int) -> Self:
        """The study with a value for each field in `FILLED_IN`, and for `target_at`.

        Recorded studies of 0.1.0 lack them: their ties are by number, and only results reach their targets.
        """
        values = {"sampling_seed": sampling_seed, "ties": "seed"}
        missing = {name: values[name] for name in FILLED_IN if getattr(self.tuner, name, self) is None}
        filled: dict[str, Any] = {"tuner": self.tuner.model_copy(update=missing)} if missing else {}
        if self.target is not None and self.target_at is None and not self._evaluations_problem():
            filled["target_at"] = "evaluations"
        return self.model_copy(update=filled) if filled else self

    def is_written_as(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a recorded study is this one, apart from values that were filled in on submission."""
        tuner, study = {**recorded.get("tuner", {})}, {**recorded}
        for name in FILLED_IN:
            if getattr(self.tuner, name, None) is None:
                tuner.pop(name, None)
        if self.target_at is None:
            study.pop("target_at", None)
        return {**study, "tuner": tuner} == self.to_json()

    def list_trials(self) -> Self:
        """The same study with its trials listed one by one."""
        if not isinstance(self.tuner, FixedTuner):
            raise SpecError([Problem("where", f"must be a string for the tuner {self.tuner.kind}, not a function")])
        spec: Any = self
        trials = [{"hp": hp, "steps": steps} for hp, steps in spec.tuner.configurations_with_steps(spec)]
        tuner = {"kind": "trials", "trials": trials}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, "space": None, "where": None, "tuner": tuner})
