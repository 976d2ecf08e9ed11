"""The only place that refuses: `decide(plan, command)` gives the events that follow, and changes nothing.

Deciding twice does no harm: what is true already yields no event.
"""

from app.domain.decide.decision import decide, price_of
from app.domain.decide.study_annotations import MOST_CHARACTERS

__all__ = ["MOST_CHARACTERS", "decide", "price_of"]
