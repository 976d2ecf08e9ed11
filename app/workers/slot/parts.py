"""What the parts of a slot share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.events.records import Records
from app.events.rows import ChainFlags
from app.workers.slot.health import Health
from app.workers.slot.lane_host import LaneHost
from app.workers.slot.notes import Notes
from app.workers.slot.outbox import FactOutbox
from app.workers.slot.owner import Owner
from app.workers.slot.patience import Patience
from app.workers.slot.resuming import Reader
from app.workers.slot.saver import Saver
from app.workers.slot.surroundings import LookAround
from app.workers.slot.trainer_host import TrainerHost
from app.workers.slot.trial_log import TrialLogs

SAVE_SECONDS = 0.05
"""What keeping a state is taken to cost before one of its plan was kept."""


@dataclass(frozen=True, slots=True)
class Parts:
    """clock: any that does not go back. flags: what is wanted of a chain, beyond what its lease said.

    overhead: the share of training time that intermediate checkpoints may take. save_seconds: what keeping a state of
    each plan took the last time. changes: why what is trained with them may end with other last bits, besides what the
    host says. around: sees what a chain is trained with besides its assignment.
    """

    me: Owner
    records: Records
    patience: Patience
    notes: Notes
    outbox: FactOutbox
    saver: Saver
    reader: Reader
    host: TrainerHost | LaneHost
    logs: TrialLogs
    health: Health
    clock: Callable[[], float]
    flags: Callable[[str], ChainFlags]
    overhead: float
    save_seconds: dict[str, float] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    around: LookAround = field(default_factory=LookAround)
