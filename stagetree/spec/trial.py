"""One trial of a study that lists its trials."""

from __future__ import annotations

from pydantic import Field

from stagetree.sequences import Sequence, parse
from stagetree.spec.fields import Count, Sequences
from stagetree.spec.sentences import Part


class TrialSpec(Part):
    """One trial: a configuration, and for how many steps to train it."""

    hp: Sequences = Field(description="an object from hyper-parameter to sequence")
    steps: Count = Field(description="the number of steps to train for, at least 1")

    def configuration(self) -> dict[str, Sequence]:
        """The sequences of the trial."""
        return {name: parse(value) for name, value in self.hp.items()}
