"""Readiness: the servers and processes that the service needs. Also the demand for slots of one kind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from threading import Lock, Thread
from typing import Protocol

from app.domain.slots import matches_device
from app.events import Records, SlotRecord
from app.events.schema_numbers import newest_schema
from stagetree.models.pages import Demand

PATIENCE_SECONDS = 1.0
FRESH_SECONDS = 1.0
"""How long an answer is reused."""

LEAST_FREE = 2**20
"""Bytes. With less free space neither events nor checkpoints can be written, and slots wait for room."""


class NotReady(Exception):
    """A check failed; the message says why."""


class Check:
    """A check in a thread of its own, at most one at a time. `look` raises if the check fails."""

    def __init__(self, look: Callable[[], None], fresh_seconds: float = FRESH_SECONDS) -> None:
        self._look, self._fresh_seconds = look, fresh_seconds
        self._lock, self._asked_at = Lock(), float("-inf")
        self._answer: Future[None] = Future()
        self._answer.set_result(None)

    def ask(self) -> Future[None]:
        """The check under way, or a fresh answer, or else a new check."""
        with self._lock:
            if self._answer.done() and time.monotonic() - self._asked_at > self._fresh_seconds:
                self._asked_at, self._answer = time.monotonic(), Future()
                Thread(target=self._find_out, args=(self._answer,), name="check", daemon=True).start()
            return self._answer

    def _find_out(self, answer: Future[None]) -> None:
        try:
            self._look()
        except Exception as error:
            answer.set_exception(error)
        else:
            answer.set_result(None)


class Checks:
    """Checks by name."""

    def __init__(self, looks: Mapping[str, Callable[[], None]]) -> None:
        self._checks = {name: Check(look) for name, look in looks.items()}

    def ask(self) -> dict[str, str]:
        """By check, "ok" or the reason why not. Waits a second at most."""
        answers = {name: check.ask() for name, check in self._checks.items()}
        wait(answers.values(), PATIENCE_SECONDS)
        return {name: _answer_text(answer) for name, answer in answers.items()}


def _answer_text(answer: Future[None]) -> str:
    if not answer.done():
        return f"did not answer within {PATIENCE_SECONDS:g} s"
    error = answer.exception()
    return "ok" if error is None else str(error) or type(error).__name__


# ---------------------------------------------------------------------------------------------------------- the checks


def check_writable(records: Records) -> None:
    """Run an update that matches no row: it fails if the database cannot be written."""
    with records.write() as rows:
        rows.studies.set_state("", "")


def check_space(path: Path) -> None:
    """Raises `NotReady` if the disk of this file or folder is full. The path need not exist yet."""
    folder = next(each for each in (path, *path.parents) if each.is_dir())
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        raise NotReady(f"the disk of {folder} is full: {free / 2**20:.1f} MiB are free")


class HasSchema(Protocol):
    """A database."""

    def schema(self) -> str | None:
        """As of `Database`."""


def check_schema(database: HasSchema) -> None:
    """Raises `NotReady` when migrations have not been run, and what `Database.read` raises."""
    newest, current = newest_schema(), database.schema()
    if current != newest:
        raise NotReady(f"the database's schema is at {current or 'nothing'}, and must be at {newest}")


def check_scheduler(records: Records, within: float) -> None:
    """Raises `NotReady` when no scheduler has looked at the log in the last `within` seconds."""
    with records.read() as rows:
        last, now = rows.schedulers.last_tick(), rows.now()
    if last is None:
        raise NotReady("no scheduler was ever heard of")
    if now - last > within:
        raise NotReady(f"no scheduler was heard of for {now - last:.0f} s")


def check_slots(records: Records, lease_seconds: float) -> None:
    """Raises `NotReady` when no slot has a worker that is alive and well."""
    with records.read() as rows:
        slots, now = rows.slots.alive(lease_seconds), rows.now()
    well = [slot for slot in slots if not slot.is_quarantined(now)]
    if not well:
        notes = "".join(f"; {slot.name}: {slot.note or 'in quarantine'}" for slot in slots)
        raise NotReady(f"no slot is at work{notes}")


def demand_of_kind(demand: Demand, rows: Iterable[SlotRecord], kind: str, *, counts_any: bool) -> Demand:
    """The demand for one kind of GPU. counts_any: include work that any kind may run."""

    def is_for(name: str) -> bool:
        return matches_device(name, [kind]) or matches_device(kind, [name]) if name else counts_any

    busy = {name: slots for name, slots in demand.busy_by_kind.items() if matches_device(name, [kind])}
    more = {name: slots for name, slots in demand.more_by_kind.items() if is_for(name)}
    mine = {row.name for row in rows if matches_device(row.kind, [kind])}
    sums = {"busy": sum(busy.values()), "more": sum(more.values())}
    of_kind = {"wanted": sum(sums.values()), "idle": [name for name in demand.idle if name in mine], **sums}
    return demand.model_copy(update={**of_kind, "busy_by_kind": busy, "more_by_kind": more})
