"""`decide(plan, command)` returns the events that follow from a command, or refuses it. It does not change the plan.

Commands are idempotent: one without an effect yields no event.
"""

from app.domain.decide.allowances import Allowance, held_seconds, limit_to_allowance
from app.domain.decide.decision import decide, price_of
from app.domain.decide.studies import MOST_CHARACTERS

__all__ = ["MOST_CHARACTERS", "Allowance", "decide", "held_seconds", "limit_to_allowance", "price_of"]
