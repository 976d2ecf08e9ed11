"""The complete results of a study, for data frames, plots and your own programs.

results = study.results()
results.dataframe().sort_values("value")
results.curve(3)
results.plot.history()
"""

from __future__ import annotations

import asyncio
from html import escape
from typing import TYPE_CHECKING

from stagetree.models import TrialDetail
from stagetree.notebook import frames
from stagetree.notebook.frames import StudyHistory

if TYPE_CHECKING:
    from pandas import DataFrame

    from stagetree.client import AsyncClient
    from stagetree.plot import Plots

_AT_ONCE = 16
"""How many trials are fetched at the same time."""


class Results(StudyHistory):
    """A study with its trials, their curves and events, and the nodes of the plan that they pass."""

    @classmethod
    async def fetch(cls, client: AsyncClient, study: str) -> Results:
        """Fetch the current results of a study."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> TrialDetail:
            async with gate:
                return await client.trial(study, number)

        whole = await client.study(study)
        details = await asyncio.gather(*(one(trial.trial) for trial in whole.trials))
        events = [event async for event in client.events(study)]
        return cls(whole, details, events, (await client.plan(study)).nodes)

    def __repr__(self) -> str:
        return f"<Results of {self.study.study}: {self.study.state}, {len(self.trials)} trials>" + frames.mark_line(
            self.study.exactness.mark
        )

    def _repr_html_(self) -> str:
        from stagetree.plot.picture import svg

        text = "<br>".join(map(escape, repr(self).splitlines()))
        return f"<p>{text}</p>{svg(self)}"

    def dataframe(self, *, by_step: bool = True) -> DataFrame:
        """A row for each trial.

        The columns are `trial`, `state`, `steps` and `value`; hyper-parameters, as `lr` if constant, otherwise as
        `lr.family`, `lr.init` and so on; `rung` and `reason` of the tuner's last decision; `added` and `ended` in
        seconds since 1970, and `seconds` between them; `error`; `exactness`, the trial's mark, if any trial has one;
        and the metric at each measured step, such as `val_loss@10`, unless `by_step` is false.
        """
        return frames.frame(self, by_step=by_step)

    @property
    def plot(self) -> Plots:
        """Pictures of the study."""
        from stagetree.plot import Plots

        return Plots(self)
