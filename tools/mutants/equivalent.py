"""Guards that no test can miss, each with the reason: without them everything is as before, only slower or wordier."""

from __future__ import annotations

EQUIVALENT = {
    "app/events/sql_chains.py module: without: where SLOTS.c.name == bindparam('its_slot')": (
        "a chain is given to one slot; its name is the key by which the row is found"
    ),
    "app/workers/scheduler/assignment.py assign: without: slots.free": "where no slot is free, nothing can be placed",
    "app/workers/scheduler/sharing.py _new_flags: without: for ... if chain in plan.chains": (
        "messages to ended chains only take memory"
    ),
    "app/workers/scheduler/sharing.py _write_flags: never: if not news": "a transaction that changes nothing",
    "app/workers/scheduler/sharing.py _flags: without: or before.stop": "a row never takes a stop back",
    "app/events/sql_rows.py show_due: without: where STUDIES.c.slots_due.is_not(None)": (
        "a study whose share is already zero is recorded with zero again"
    ),
    "app/workers/scheduler/retention.py _free: always: if chosen": "to release nothing is a transaction without events",
    "app/workers/slot/checkpoint_store.py _hash_image: never: if state.size > SMALL": (
        "a large state is hashed before it is written, instead of meanwhile"
    ),
    "app/workers/slot/slot.py _claim: without: for ... if other != chain": "a claimed chain is not claimed again",
    "app/workers/slot/slot.py _prune: without: for ... if lane not in over": "ended lanes only take memory",
    "app/workers/slot/worker_thread.py _await_item: always: if was_idle": "the second thread waits for a moment, too",
    "app/workers/scheduler/tuning.py _ask: without: driver.suggest(room)": "a transaction that changes nothing",
    "app/workers/scheduler/tuning.py decide_actions: never: if self._observe(plan, study, driver)"
    " and next(attempts) <= OPTIMISTIC": "a caller that waits for the plan waits for the tuner, too",
    "app/workers/slot/training.py _complete: without: self._checkpoints.is_quick": (
        "a fact is held back for a moment, at most"
    ),
    "app/workers/slot/training.py _complete: without: or is_last": (
        "the last stage of a chain ends with an evaluation that a trial waits for, which is news"
    ),
}
"""By the mutant's name: its file, its function, and the change."""
