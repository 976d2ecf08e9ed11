"""What is settled of a study at its submission: what its user left open, trials that only a function describes, and
the configurations that are suggested to it then.
"""

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


class SettledStudy(SpecModel):
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
        """Raise `FieldError` where its tuner takes no suggestions, or not these, or cannot learn from other studies."""
        check_suggestions(self)
        check_learn_from(self)

    def with_sampling_seed(self, seed: int) -> Self:
        """The same study, drawing from a seed if its tuner draws and its user has given none."""
        if getattr(self.tuner, "sampling_seed", self) is not None:
            return self
        return self.model_copy(update={"tuner": self.tuner.model_copy(update={"sampling_seed": seed})})

    def is_written_as(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a study on record is this one, but for what was settled when it was submitted."""
        tuner = {**recorded.get("tuner", {})}
        if getattr(self.tuner, "sampling_seed", None) is None:
            tuner.pop("sampling_seed", None)
        return {**recorded, "tuner": tuner} == self.to_json()

    def listed(self) -> Self:
        """The same trials, listed one by one."""
        if not isinstance(self.tuner, FixedTuner):
            raise SpecError([Problem("where", f"must be a string for the tuner {self.tuner.kind}, not a function")])
        spec: Any = self
        trials = [{"hp": hp, "steps": steps} for hp, steps in spec.tuner.with_steps(spec)]
        tuner = {"kind": "trials", "trials": trials}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, "space": None, "where": None, "tuner": tuner})
