"""Tuners: pure functions from what has happened in a study to what is wanted next, by the kind in its study file.

A tuner reads the folded study and answers with wishes. What it wished for before is there to be read, so it keeps
nothing in memory that it could not work out again.
"""

from app.scheduling.tuners.base import Tuner, tuner_of

__all__ = ["Tuner", "tuner_of"]
