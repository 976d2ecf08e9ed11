"""Runs on: the thread that trains.

Whether a slot is well: what failed on it in a row, and for how long it is given nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.domain import events as e
from app.events import DatabaseUnavailable, Records
from app.outages import LostRace
from app.workers.ownership import Owner
from app.workers.slot.claim import Claim
from app.workers.slot.outbox import QuarantineSlot
from app.workers.slot.retry import Closing, RetryPolicy, SlotStatus

logger = logging.getLogger(__name__)

MAX_FAILED_NODES = 3
"""So many different nodes that fail in a row are the slot's fault, if one of them goes well elsewhere."""

MAX_ACCIDENTS = 3
"""So many accidents in a row are no accident: what happens at once, again and again, would keep everybody busy."""

QUARANTINE_SECONDS = 60.0
"""In quarantine. Then the slot is tested before the next chain, and one that fails is out for as long again."""


@dataclass(slots=True)
class Health:
    """failed_nodes: in a row, with no stage completed in between, each with the last step before it failed.

    since: the version of each stream at the first of them. is_untested: since it was put into quarantine.
    """

    failed_nodes: dict[str, int] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    accidents: int = 0
    quarantines: int = 0
    is_untested: bool = False

    def record_success(self) -> None:
        """A stage was completed."""
        self.failed_nodes.clear()
        self.since.clear()
        self.accidents = self.quarantines = 0

    def record_failure(self, node: str, step: int, stream: str, version: int) -> None:
        """The user's code failed after that step."""
        self.failed_nodes[node] = step
        self.since.setdefault(stream, version)

    def record_accident(self) -> None:
        """A chain was given back, because of something that is nobody's fault."""
        self.accidents += 1

    @property
    def is_suspect(self) -> bool:
        """Whether it is in doubt; it is the slot's fault if another slot does what failed here."""
        return len(self.failed_nodes) >= MAX_FAILED_NODES

    def passes_failed_step(self, stage: e.Stage) -> bool:
        """Whether a stage that was completed elsewhere comes past a step at which this slot failed."""
        return stage.end > self.failed_nodes.get(stage.node, stage.end)

    @property
    def has_too_many_accidents(self) -> bool:
        return self.accidents >= MAX_ACCIDENTS

    def start_quarantine(self) -> float:
        """It is given nothing for a time: for how many seconds."""
        self.quarantines += 1
        self.failed_nodes.clear()
        self.since.clear()
        self.accidents = 0
        self.is_untested = True
        return QUARANTINE_SECONDS

    @property
    def may_return_at_once(self) -> bool:
        """Whether a passed test is enough to end the quarantine: only the first time."""
        return self.quarantines == 1


class Quarantine:
    """When a slot is given nothing for a time, since it fails where others get on, or cannot do what it is given."""

    def __init__(self, me: Owner, records: Records, retry: RetryPolicy, status: SlotStatus, health: Health) -> None:
        self._me, self._records, self._retry, self._status, self._health = me, records, retry, status, health

    def may_be_chance(self, kind: str) -> bool:
        """Whether a failure of that kind is an accident, as far as is known: a fault of ours once, and the loss of a
        rank until nothing was completed between several.
        """
        most = {"internal": 1, "rank": MAX_ACCIDENTS - 1}
        return self._health.accidents < most.get(kind, 0)

    def record_success(self) -> None:
        """A stage was completed, or a proof made."""
        self._health.record_success()
        self._status.remove("health")

    def judge_failure(self, claim: Claim, node: str, step: int, version: int) -> QuarantineSlot | None:
        """The user's code has failed. It is the slot's fault if that goes on from node to node, and one goes well
        elsewhere: of a search in which most trials fail, no slot is to blame.

        version: that of the last fact of this slot in the chain's stream.
        """
        self._health.record_failure(node, step, claim.stream, version)
        if not self._health.is_suspect or not self._another_slot_succeeded(claim.stream):
            return None
        return self._impose(
            f"{len(self._health.failed_nodes)} different nodes failed here in a row, and another slot has trained one"
        )

    def judge_accident(self, reason: str, *, is_hopeless: bool) -> QuarantineSlot | None:
        """A chain was given back. is_hopeless: the next one would be, too."""
        self._health.record_accident()
        if not is_hopeless and not self._health.has_too_many_accidents:
            return None
        return self._impose(f"chains cannot be trained here: {reason}")

    def quarantine_members(self, slots: Mapping[str, str]) -> list[QuarantineSlot]:
        """Of other slots, with their owners, that were lent to a chain of this one and not left by their workers."""
        reason = "it was lent to a chain, and its worker has not left the device in time"
        return [QuarantineSlot(name, owner, QUARANTINE_SECONDS, reason) for name, owner in slots.items()]

    @property
    def needs_test(self) -> bool:
        """Whether the slot was in quarantine, and was not tested since."""
        return self._health.is_untested

    def record_test_passed(self) -> None:
        """The slot was tested, and is well."""
        self._health.is_untested = False
        self._status.remove("health")

    def lift(self, is_well: Callable[[], bool]) -> None:
        """Once a quarantine after a failure is on record: test the slot, which ends it if that is enough."""
        if self._health.may_return_at_once and is_well():
            with contextlib.suppress(Closing):
                self._lift()

    def _impose(self, reason: str) -> QuarantineSlot:
        seconds = self._health.start_quarantine()
        logger.warning("slot %s is in quarantine for %.0f s: %s", self._me.slot, seconds, reason)
        self._status.put("health", reason)
        return QuarantineSlot(self._me.slot, self._me.owner, seconds, reason)

    def _lift(self) -> None:
        self.record_test_passed()
        for _ in self._retry.attempts():
            try:
                with self._records.write() as rows:
                    QuarantineSlot(self._me.slot, self._me.owner, None, None).apply(rows)
            except (DatabaseUnavailable, LostRace) as problem:
                logger.info("the quarantine of slot %s is not ended yet: %s", self._me.slot, problem)
                continue
            logger.warning("slot %s passed its test, and is back", self._me.slot)
            return

    def _another_slot_succeeded(self, stream: str) -> bool:
        """Whether another slot has trained, since the first of the failures, past a step at which this one failed."""
        after = self._health.since.get(stream, 0)
        try:
            later = [each.event for each in self._records.log.scan(stream, after=after)]
            completed = [event for event in later if isinstance(event, e.StageCompleted)]
            with self._records.read() as rows:
                completions = [(rows.chains.get(event.chain), event.index) for event in completed]
        except (DatabaseUnavailable, LostRace) as problem:
            logger.info("whether it goes well elsewhere is not known: %s", problem)
            return False
        others = [(row, index) for row, index in completions if row is not None and row.slot != self._me.slot]
        return any(self._health.passes_failed_step(each) for row, at in others for each in row.stages[at : at + 1])
