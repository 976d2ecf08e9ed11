"""Tuners: pure functions from the history of a study to the next action.

`base` has the interface, `kinds` the list of tuners, and `driver` runs one for a study. A file with a tuner of its own
can import all that it needs from here.
"""

from __future__ import annotations

from app.domain.commands import Extend, Prioritize, Start, Stop
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.samplers import SAMPLERS, Knowledge, NothingToLearn, Proposal, Sampler, results_for, sampler_of
from app.search.tuners.base import NewTrial, Tuner, context_of
from app.search.tuners.driver import TunerDriver, TunerFailed
from app.search.tuners.kinds import TUNERS, tuner_of

__all__ = [
    "SAMPLERS",
    "TUNERS",
    "Extend",
    "Knowledge",
    "NewTrial",
    "NothingToLearn",
    "Prioritize",
    "Proposal",
    "Sampler",
    "Start",
    "Stop",
    "TrialEvent",
    "TrialEventKind",
    "Tuner",
    "TunerDriver",
    "TunerFailed",
    "context_of",
    "results_for",
    "sampler_of",
    "tuner_of",
]
