"""Exactness: sharing changes no trial's numbers, or the trial is marked.

Two things could change a trial's numbers. The first is a value that another trial left in the process; each chain
therefore trains in a process in which nothing was trained before. The second is a saved state that lacks something, so
that resumed training differs from uninterrupted training. This depends on the user's code, so it is tested:

- A *resumption* is a step at which a chain began with a saved state, and the kinds of values that it depends on
  (`app.domain.search_plan.resumptions`). Each distinct resumption of a study is compared: a new process trains the
  same steps, but resumes where the recorded training did not stop, or does not stop where the recorded one resumed.
  The states, metrics and Python objects must be equal. `app.exactness.verification` chooses the steps.
- A value that differs between the two objects, but is not part of the state, is a *suspicion* (`suspicions`). It gives
  no mark by itself. A whole trial is trained again before the study ends.
- A *whole trial* is also trained again if that costs less than a fifth of the steps that sharing saved.

`ExactnessTested` records each comparison. `verdict` computes from these events the verdict on a study and the marks of
its trials. The *check* trains a trainer's first steps before anything else of its plan.

`app.workers.scheduler.verification` assigns verifications to slots, `app.workers.slot.verification` runs them, and
`stagetree.runtime` compares states (`differences`) and objects (`held_objects`).
"""

from __future__ import annotations

from app.exactness.suspicions import Suspicion, open_suspicions, whole_trials
from app.exactness.verdict import Judgement, depends_on_sharing, judge, resumptions_of, trial_marks, verdict_text

__all__ = [
    "Judgement",
    "Suspicion",
    "depends_on_sharing",
    "judge",
    "open_suspicions",
    "resumptions_of",
    "trial_marks",
    "verdict_text",
    "whole_trials",
]
