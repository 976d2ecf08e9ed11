"""Decides whether a slot is well from its consecutive failures, and quarantines it.

Runs on: the thread that trains.
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
from app.workers.slot.retry import Closing, RetryPolicy
from app.workers.slot.slot_status import SlotStatus

logger = logging.getLogger(__name__)

MAX_FAILED_NODES = 3
"""This many failed nodes in a row are the slot's fault, if another slot has trained one of them."""

MAX_ACCIDENTS = 3
"""This many accidents in a row are no coincidence, and would otherwise repeat at full speed."""

QUARANTINE_SECONDS = 60.0
"""Length of a quarantine. Then the slot is tested before the next chain, and quarantined again if it fails."""


@dataclass(slots=True)
class Health:
    """failed_nodes: consecutive failures, each with the last step before it.
    since: by stream, the version at the first of them.
    is_untested: since its last quarantine.
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

    @property
    def is_suspect(self) -> bool:
        """Whether the failures would be the slot's fault if another slot succeeded."""
        return len(self.failed_nodes) >= MAX_FAILED_NODES

    def passes_failed_step(self, stage: e.Stage) -> bool:
        """Whether a stage completed on another slot passes a step at which this slot failed."""
        return stage.end > self.failed_nodes.get(stage.node, stage.end)

    def start_quarantine(self) -> float:
        """Returns its length in seconds."""
        self.quarantines += 1
        self.failed_nodes.clear()
        self.since.clear()
        self.accidents = 0
        self.is_untested = True
        return QUARANTINE_SECONDS

    @property
    def may_return_at_once(self) -> bool:
        """Whether a passed test ends the quarantine: only the first time."""
        return self.quarantines == 1


class Quarantine:
    """Takes a slot out of service when it fails where others succeed, or cannot run its chains."""

    def __init__(self, me: Owner, records: Records, retry: RetryPolicy, status: SlotStatus, health: Health) -> None:
        self._me, self._records, self._retry, self._status, self._health = me, records, retry, status, health

    def may_be_chance(self, kind: str) -> bool:
        """Whether a failure of that kind may be an accident: an internal fault once, a lost rank up to a limit."""
        most = {"internal": 1, "rank": MAX_ACCIDENTS - 1}
        return self._health.accidents < most.get(kind, 0)

    def record_success(self) -> None:
        """A stage or a verification was completed."""
        self._health.record_success()
        self._status.remove("health")

    def judge_failure(self, claim: Claim, node: str, step: int, version: int) -> QuarantineSlot | None:
        """The user's code failed. The slot is to blame if different nodes fail in a row, one of which another slot has
        trained.

        version: of this slot's last fact in the chain's stream.
        """
        self._health.record_failure(node, step, claim.stream, version)
        if not self._health.is_suspect or not self._another_slot_succeeded(claim.stream):
            return None
        return self._impose(
            f"{len(self._health.failed_nodes)} different nodes failed here in a row, and another slot has trained one"
        )

    def judge_accident(self, reason: str, *, is_hopeless: bool) -> QuarantineSlot | None:
        """A chain was given back. is_hopeless: whether the next one would be, too."""
        self._health.accidents += 1
        if not is_hopeless and self._health.accidents < MAX_ACCIDENTS:
            return None
        return self._impose(f"chains cannot be trained here: {reason}")

    def quarantine_members(self, slots: Mapping[str, str]) -> list[QuarantineSlot]:
        """Quarantine lent slots (by name, with owners) whose workers did not leave their devices."""
        reason = "it was lent to a chain, and its worker has not left the device in time"
        return [QuarantineSlot(name, owner, QUARANTINE_SECONDS, reason) for name, owner in slots.items()]

    @property
    def needs_test(self) -> bool:
        """Whether the slot was in quarantine and has not been tested since."""
        return self._health.is_untested

    def record_test_passed(self) -> None:
        """The slot is well."""
        self._health.is_untested = False
        self._status.remove("health")

    def lift(self, is_well: Callable[[], bool]) -> None:
        """Test the slot once its quarantine is recorded, and end the quarantine if one test is enough."""
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
        """Whether another slot has since trained past a step at which this one failed."""
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
