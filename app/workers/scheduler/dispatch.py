"""Runs on: the tick's thread.

Sends chains to their slots. A message is a hint: it may come twice, and one that did not come is sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from app.domain.assignment import ChainAssignment
from app.events.rows import ChainRecord
from app.workers.scheduler.ports import Ports

logger = logging.getLogger(__name__)


def messages(assignment: ChainAssignment) -> int:
    """How many a chain is begun and continued by: one for each stage, but a pack is begun once."""
    return 1 if assignment.pack else len(assignment.stages)


class Dispatch:
    """The way to the broker. What it did not take is tried again at the next tick: each try is a wait."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._is_away = ports, False
        self._unsent: dict[str, tuple[int, str]] = {}  # chain: number of stages, slot

    def send(self, chain: str, stages: int, slot: str) -> bool:
        """Whether the broker took it."""
        self._unsent[chain] = (stages, slot)
        if self._is_away:
            return False
        try:
            self._ports.publish(chain, stages, slot)
        except Exception as error:  # whatever the broker's library raises; nothing is written here
            logger.warning("chain %s could not be sent to %s yet: %s", chain, slot, error)
            self._is_away = True
            return False
        del self._unsent[chain]
        return True

    def send_again(self, undelivered: Sequence[ChainRecord]) -> None:
        """What the broker did not take, and what was sent long ago and nobody claimed. Raises `DatabaseUnavailable`."""
        self._is_away = False
        for chain, (stages, slot) in list(self._unsent.items()):
            self.send(chain, stages, slot)
        readable = [(row, row.assignment) for row in undelivered if isinstance(row.assignment, ChainAssignment)]
        sent = [row for row, work in readable if self.send(row.chain, messages(work), row.slot)]
        if sent:
            with self._ports.records.write() as rows:
                for row in sent:
                    rows.chains.mark_dispatched(row.chain)
