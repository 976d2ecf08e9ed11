"""What is settled of a study at its submission: what its user left open, trials that only a function describes, and
the configurations that are suggested to it then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from stagetree.space import Space
from stagetree.spec.errors import Problem, SpecError
from stagetree.spec.fields import SpecModel
from stagetree.spec.suggesting import (
    LearnFrom,
    Suggestions,
    check_learn_from,
    check_suggestions,
    learn_from_field,
    suggestions_field,
)
from stagetree.spec.tuners import FixedTuner
from stagetree.spec.tuners.base import MODELLING


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

    def as_new(self) -> Self:
        """The same study as it is when it is new, unless its user wants something else: nothing is drawn twice, and
        `tpe` and `gp` model each rung by itself.

        A study on record that says nothing of it is from before there was a choice, and draws as it did then.
        """
        changes = {"distinct": True} if getattr(self.tuner, "distinct", self) is None else {}
        if getattr(self.tuner, "sampler", None) in MODELLING and self.tuner.per_rung is None:
            changes["per_rung"] = True
        return self.model_copy(update={"tuner": self.tuner.model_copy(update=changes)}) if changes else self

    def is_written_as(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a study on record is this one, but for what was settled when it was submitted."""
        tuner = {**recorded.get("tuner", {})}
        for settled in ("sampling_seed", "distinct", "per_rung"):
            if getattr(self.tuner, settled, None) is None:
                tuner.pop(settled, None)
        return {**recorded, "tuner": tuner} == self.to_json()

    def listed(self) -> Self:
        """The same trials, listed one by one."""
        if not isinstance(self.tuner, FixedTuner):
            raise SpecError([Problem("where", f"must be a string for the tuner {self.tuner.kind}, not a function")])
        spec: Any = self.as_new()
        trials = [{"hp": hp, "steps": steps} for hp, steps in spec.tuner.with_steps(spec)]
        tuner = {"kind": "trials", "trials": trials}
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, "space": None, "where": None, "tuner": tuner})
