"""Runs on: the tick's thread; `say_once` on the retention thread.

What the scheduler is given, in one value that its parts share, and what holds something up, in a sentence each.

Sends chains to their slots. A message is a hint: it may come twice, and one that did not come is sent again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.domain.assignment import ChainAssignment
from app.domain.events import Event
from app.domain.search_plan import SearchPlan
from app.events.log import Alongside, StoredEvent
from app.events.plans import Plans
from app.events.records import Records
from app.events.rows import ChainRecord
from app.events.transact import Write, transact
from app.scheduling.costs import Costs
from app.scheduling.policies import Policy
from app.tuning.tuners.driver import MakeDriver, make_driver
from stagetree.limits import LIMITS, Limits

logger = logging.getLogger(__name__)


class Problems:
    """Sentences by what they are about: a plan, a study, or a chain."""

    def __init__(self) -> None:
        self._sentences: dict[str, str] = {}

    def report(self, about: str, sentence: str) -> None:
        """Something is held up."""
        if self._sentences.get(about) != sentence:
            logger.warning("%s", sentence)
        self._sentences[about] = sentence

    def clear(self, about: str) -> None:
        """It is not, or not any more."""
        self._sentences.pop(about, None)

    def all(self) -> Mapping[str, str]:
        """What holds something up now."""
        return dict(self._sentences)


def say_once() -> Callable[[str], None]:
    """Logs a sentence when something begins to be held up, and none as long as it is: an empty one says it is not."""
    said = ""

    def say(text: str) -> None:
        nonlocal said
        if text and not said:
            logger.warning("%s", text)
        said = text

    return say


Publisher = Callable[[str, int, str], None]
"""Sends a chain (id, number of stages, slot) to the broker. Raises whatever the broker's library raises."""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where the scheduler reads and writes, and by which settings.

    notify: tells the worker of a chain on a slot that it was told something; it would find out by itself. limits: what
    a study may ask for. clock: Unix seconds, for facts; leases go by the clock of the records. elapsed: any clock that
    does not go back. intermediate_bytes: what a plan may spend on checkpoints inside stages. turn_seconds: how long
    studies that cannot have a slot each keep one in turn; None: nobody's chain is stopped for another study. pause:
    waits for so many seconds after a lost race. show: puts on record, when that is due, that this scheduler has looked.
    chains_that_fit: how many more chains may be given before checkpoints are deleted, as `Retention` says. packs:
    whether slots can train packs. proofs: whether they can train steps again to compare.
    """

    records: Records
    plans: Plans
    policy: Policy
    publish: Publisher
    new_id: Callable[[], str]
    lease_seconds: float
    intermediate_bytes: int
    limits: Limits = LIMITS
    turn_seconds: float | None = None
    packs: bool = True
    proofs: bool = False
    clock: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep
    notify: Callable[[str, str], None] = lambda chain, slot: None
    show: Callable[[], None] = lambda: None
    chains_that_fit: Callable[[Mapping[str, SearchPlan], int, int], int] = lambda plans, live, wanted: wanted
    make_driver: MakeDriver = make_driver
    make_costs: Callable[[], Costs] = Costs
    problems: Problems = field(default_factory=Problems)

    def transact(
        self,
        stream: str,
        decide: Callable[[SearchPlan], Sequence[Event]],
        *,
        alongside: Alongside | None = None,
        prepare: Callable[[], None] | None = None,
        is_known: bool = False,
    ) -> list[StoredEvent]:
        """As `app.events.transact.transact`."""
        write = Write(
            stream=stream, decide=decide, at=self.clock(), alongside=alongside, prepare=prepare, is_known=is_known
        )
        return transact(self.records.log, self.plans, write, pause=self.pause)


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
            about = {"chain": chain, "slot": slot}
            logger.warning("chain %s could not be sent to %s yet: %s", chain, slot, error, extra=about)
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
