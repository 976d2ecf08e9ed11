"""The fields and methods of a study that concern its submission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from stagetree.space import Space
from stagetree.spec.errors import Problem, SpecError
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

        @property
        def search_space(self) -> Space: ...
        @property
        def sampling_seed(self) -> int: ...

        def to_json(self) -> dict[str, Any]: ...

    def check_beginning(self) -> None:
        """Raise `FieldError` for suggestions that the tuner cannot take, or studies that it cannot learn from."""
        check_suggestions(self)
        check_learn_from(self)

    def fill_in(self, sampling_seed: int) -> Self:
        """The study with a value for each field in `FILLED_IN`: drawn ties, since those by number are of 0.1.0."""
        values = {"sampling_seed": sampling_seed, "ties": "seed"}
        missing = {name: values[name] for name in FILLED_IN if getattr(self.tuner, name, self) is None}
        return self.model_copy(update={"tuner": self.tuner.model_copy(update=missing)}) if missing else self

    def is_written_as(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a recorded study is this one, apart from values that were filled in on submission."""
        tuner = {**recorded.get("tuner", {})}
        for name in FILLED_IN:
            if getattr(self.tuner, name, None) is None:
                tuner.pop(name, None)
        return {**recorded, "tuner": tuner} == self.to_json()

    def list_trials(self) -> Self:
        """The same study with its trials listed one by one."""
        if not isinstance(self.tuner, FixedTuner):
            raise SpecError([Problem("where", f"must be a string for the tuner {self.tuner.kind}, not a function")])
        spec: Any = self
        trials = [{"hp": hp, "steps": steps} for hp, steps in spec.tuner.configurations_with_steps(spec)]
        tuner = {"kind": "trials", "trials": trials}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, "space": None, "where": None, "tuner": tuner})
