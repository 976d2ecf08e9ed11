"""Exactness: no number differs from what the trial would have alone, unless a mark stands beside it.

Two things could break that promise. A chain could find what another trial left in its process: it cannot, since each
chain trains in a process in which nothing was trained before. And training that resumes from a saved state could differ
from training that never stopped, because the state lacks something. That depends on the user's code, so it is compared:

- A *resumption* is a step at which a chain began with a saved state, with the kinds of values that it depends on
  (`app.domain.search_plan.resumptions`). Each distinct resumption of a study is compared: a fresh process trains the
  same steps in another way (on from that state where the record never stopped, or through that step where the record
  resumed), and state, metrics and what both objects hold must agree (`app.exactness.verification` says which steps).
- What the two objects hold and the state does not is a *suspicion* (`suspicions`): a whole trial is trained again
  before the study ends. It is no mark by itself.
- A *whole trial* is also trained again where that costs less than a fifth of what sharing saved.

`ExactnessTested` records each comparison. `verdict` turns these events into one line for a study and one mark for each
trial that needs one. `check` is what a trainer's first steps showed before anything else of its plan was trained.

Where comparisons run: `app.workers.scheduler.verification` gives them to slots, `app.workers.slot.verification` makes
them, and `stagetree.runtime` compares states (`differences`) and looks at objects (`held_objects`).
"""

from __future__ import annotations

from app.exactness.suspicions import Suspicion, open_suspicions, whole_trials
from app.exactness.verdict import Judgement, judge, rests_on_sharing, resumptions_of, trial_marks, verdict_text

__all__ = [
    "Judgement",
    "Suspicion",
    "judge",
    "open_suspicions",
    "rests_on_sharing",
    "resumptions_of",
    "trial_marks",
    "verdict_text",
    "whole_trials",
]
