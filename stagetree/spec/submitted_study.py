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

    def with_sampling_seed(self, seed: int) -> Self:
        """The study with this sampling seed, unless its user has set one."""
        if getattr(self.tuner, "sampling_seed", self) is not None:
            return self
        return self.model_copy(update={"tuner": self.tuner.model_copy(update={"sampling_seed": seed})})

    def is_written_as(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a recorded study is this one, apart from values that were filled in on submission."""
        tuner = {**recorded.get("tuner", {})}
        if getattr(self.tuner, "sampling_seed", None) is None:
            tuner.pop("sampling_seed", None)
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
