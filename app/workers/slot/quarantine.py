"""When a slot is given nothing for a time, because it fails where others get on, or cannot do what it is given."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from app.away import LostRace
from app.domain import events as e
from app.events.database import DatabaseUnavailable
from app.events.log import Alongside
from app.events.rows.ports import RowsPort
from app.workers.slot.claim import Claim
from app.workers.slot.owner import Owner, quarantine
from app.workers.slot.parts import Parts
from app.workers.slot.patience import Closing
from app.workers.slot.trainer_host import NoTrainerProcess

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sentence:
    """So many seconds, for that reason."""

    me: Owner
    seconds: float
    reason: str

    def added_to(self, proof: Alongside) -> Alongside:
        """Both in one transaction, so that nothing else is assigned in between."""

        def both(rows: RowsPort) -> None:
            proof(rows)
            quarantine(rows, self.me, self.seconds, self.reason)

        return both


def after_failure(parts: Parts, claim: Claim) -> Sentence | None:
    """The user's code has failed. It is the slot's fault if that goes on from node to node while others get on."""
    health = parts.health
    if not health.is_suspect or not _do_others_get_on(parts, claim.stream):
        return None
    reason = f"{len(health.failed_nodes)} different nodes failed here in a row, while other slots got on"
    return _pass(parts, reason)


def after_accident(parts: Parts, reason: str, *, is_hopeless: bool) -> Sentence | None:
    """A chain was given back. is_hopeless: the next one would be, too."""
    if not is_hopeless and not parts.health.is_unlucky:
        return None
    return _pass(parts, f"chains cannot be trained here: {reason}")


def serve(parts: Parts, sentence: Sentence | None) -> None:
    """Once the sentence for a failure is on record: test the slot, which ends it if that is enough."""
    if sentence is None or not parts.health.may_return_at_once:
        return
    parts.saver.drain()
    parts.outbox.drain()
    try:
        parts.host.check()
    except NoTrainerProcess as problem:
        logger.warning("slot %s stays in quarantine: %s", parts.me.slot, problem)
        return
    with contextlib.suppress(Closing):
        _acquit(parts)


def _pass(parts: Parts, reason: str) -> Sentence:
    seconds = parts.health.quarantined()
    logger.warning("slot %s is in quarantine for %.0f s: %s", parts.me.slot, seconds, reason)
    parts.notes.put("health", reason)
    return Sentence(parts.me, seconds, reason)


def _acquit(parts: Parts) -> None:
    parts.notes.remove("health")
    for _ in parts.patience.tries():
        try:
            with parts.records.write() as rows:
                quarantine(rows, parts.me, None, None)
        except (DatabaseUnavailable, LostRace) as problem:
            logger.info("the quarantine of slot %s is not ended yet: %s", parts.me.slot, problem)
            continue
        logger.warning("slot %s passed its test, and is back", parts.me.slot)
        return


def _do_others_get_on(parts: Parts, stream: str) -> bool:
    """Whether a stage of the plan was completed on another slot since the first of the failures."""
    after = parts.health.since.get(stream, 0)
    try:
        later = parts.records.log.scan(stream, after=after)
        chains = {each.event.chain for each in later if isinstance(each.event, e.StageCompleted)}
        with parts.records.read() as rows:
            found = [rows.chains.get(chain) for chain in chains]
    except (DatabaseUnavailable, LostRace) as problem:
        logger.info("whether other slots get on is not known: %s", problem)
        return False
    return any(row is not None and row.slot != parts.me.slot for row in found)
