"""What `Study` and `AsyncStudy` show of a study: the same, as it was last heard."""

from __future__ import annotations

from stagetree.client.asking import Known
from stagetree.client.http import Json
from stagetree.models import StudyAnswer, Trial, TrialDetail
from stagetree.notebook import frames

_ALONE = TrialDetail.model_fields.keys() - Trial.model_fields.keys()
"""What only an answer about one trial has."""


class StudyView:
    """A study as it was last heard of; `refresh` hears it anew."""

    _known: Known

    @property
    def url(self) -> str:
        """Where its server is."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """Its name in URLs and on the command line."""
        return str(self._known.study["study"])

    @property
    def state(self) -> str:
        """`running`, `paused`, `completed`, `failed` or `cancelled`."""
        return str(self._known.study["state"])

    @property
    def metric(self) -> str:
        """The metric that counts."""
        return str(self._known.study["metric"])

    @property
    def mode(self) -> str:
        """Whether more (`max`) or less (`min`) of it is better."""
        return str(self._known.study["mode"])

    @property
    def answer(self) -> StudyAnswer:
        """All that the server said of it: costs, counts, times; without its trials."""
        return StudyAnswer.of(self._known.study)

    @property
    def trials(self) -> list[Trial]:
        """Its trials, in the order of their numbers."""
        return [_listed(self._known.trials[number]) for number in sorted(self._known.trials)]

    @property
    def best(self) -> Trial | None:
        """The trial with the best value, ties to the lower number; None as long as none has one."""
        best = frames.best(self._known.trials.values(), self.mode)
        return None if best is None else _listed(best)

    def __repr__(self) -> str:
        return frames.text(type(self).__name__, self.url, self._known.study, self._known.trials.values())

    def _repr_html_(self) -> str:
        return frames.html(repr(self), self._known.study, self._known.trials.values())


def _listed(trial: Json) -> Trial:
    """The trial as lists of trials have it, whichever answer told of it last."""
    return Trial.of({name: value for name, value in trial.items() if name not in _ALONE})
