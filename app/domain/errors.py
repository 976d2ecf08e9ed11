"""What the domain refuses.

Refused
├── Unknown          there is no such study or trial
└── StateConflict    it is there, but not in a state that allows this
"""

from __future__ import annotations


class Refused(Exception):
    """A command that cannot be accepted; the message is one sentence for whoever gave it."""


class Unknown(Refused):
    """There is no such study or trial."""


class StateConflict(Refused):
    """The study or trial is not in a state that allows this."""
