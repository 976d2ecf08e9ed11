"""Plans at an earlier version, and earlier measurements of packs and ranks, from the log.

A few earlier plans stay in memory and are folded on from there, so that walking forward through a log folds each event
once. A measurement counts for all plans with the same trainer, version and arguments; the seed does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from app.domain.events import Json, PackingProfiled, PlanOpened, Profile, RanksProfiled
from app.domain.evolve import collector_paused, evolve, struck_studies
from app.domain.search_plan import SearchPlan
from app.domain.slots import matches_device
from app.events.codec import UnknownEvent
from app.events.log import EventLog

MOMENTS_KEPT = 4
MOMENT_BATCH = 5_000


class Snapshots:
    """The plans at earlier versions. Thread-safe; one thread uses it at a time."""

    def __init__(self, log: EventLog, kept: int = MOMENTS_KEPT) -> None:
        self._log, self._kept = log, kept
        self._plans: list[tuple[str, SearchPlan]] = []  # least recently used first
        self._lock, self._is_void = Lock(), False

    @contextmanager
    def holding(self, stream: str, version: int) -> Iterator[SearchPlan]:
        """The plan of a stream after its event `version`, which must exist. The plan is locked for the block."""
        with self._lock:
            if self._is_void:
                self._plans, self._is_void = [], False
            plan = self._nearest(stream, version)
            if not self._fold(stream, plan, version):  # a study was struck since, so its events must be left out
                plan = SearchPlan(struck=self._log.struck_studies(stream))
                self._fold(stream, plan, version)
            self._plans = [*self._plans, (stream, plan)][-self._kept :]
            yield plan

    def clear(self) -> None:
        """Forget all of them: the log has lost events. Does not wait for the thread that holds a plan."""
        self._is_void = True

    def _nearest(self, stream: str, version: int) -> SearchPlan:
        """Take out the latest cached plan that is not past `version`; or an empty plan."""
        earlier = [each for each in self._plans if each[0] == stream and each[1].version <= version]
        if not earlier:
            return SearchPlan(struck=self._log.struck_studies(stream))
        nearest = max(earlier, key=lambda each: each[1].version)
        self._plans = [each for each in self._plans if each is not nearest]
        return nearest[1]

    def _fold(self, stream: str, plan: SearchPlan, version: int) -> bool:
        """Fold up to `version`. False if the plan contains a study that has been struck since."""
        with collector_paused():
            while plan.version < version:
                limit = min(MOMENT_BATCH, version - plan.version)
                batch = self._log.read(stream, after=plan.version, limit=limit)
                if not batch or not struck_studies(each.event for each in batch) <= plan.struck:
                    return False
                for each in batch:
                    evolve(plan, each.event)
                    plan.version = each.version
        return True


def packs_on_record(log: EventLog, opened: PlanOpened, batch: Json) -> dict[str, PackingProfiled]:
    """The measurements of packs by kind of device, as `profiles_on_record`.

    Whether packs are exact depends on their width, so only the plan's own measurements show it.
    """
    profiles = profiles_on_record(log, opened, batch, PackingProfiled)
    return {device: replace(profile, exact=False) for device, profile in profiles.items()}


def profiles_on_record(
    log: EventLog, opened: PlanOpened, batch: Json, wanted_type: type[Profile]
) -> dict[str, Profile]:
    """The last measurement for each kind of device with such a batch, the newest last. Raises `DatabaseUnavailable`."""
    alike = (
        recorded.event
        for recorded in log.profiles()
        if _is_of(recorded.event, batch, wanted_type) and _is_alike(log, recorded.stream, opened)
    )
    return _last_by_kind(alike)


def last_profile(
    log: EventLog, opened: PlanOpened, batch: Json, wanted_type: type[Profile], devices: Sequence[str] = ()
) -> Profile | None:
    """The newest profile; of ranks, only on the kinds that `devices` names. Raises `DatabaseUnavailable`."""
    return _newest(profiles_on_record(log, opened, batch, wanted_type), wanted_type, devices)


@dataclass(frozen=True, slots=True)
class MeasuredProfiles:
    """The profiles for one study, of which it finds the last as `last_profile` does. It can be pickled."""

    profiles: tuple[Any, ...]
    devices: Sequence[str]

    @classmethod
    def read(cls, log: EventLog, opened: PlanOpened, devices: Sequence[str]) -> MeasuredProfiles:
        """Raises `DatabaseUnavailable`."""
        recorded = log.profiles()
        alike = {stream for stream in {each.stream for each in recorded} if _is_alike(log, stream, opened)}
        return cls(tuple(each.event for each in recorded if each.stream in alike), devices)

    def __call__(self, batch: Json, wanted_type: type[Profile]) -> Profile | None:
        fitting = (each for each in self.profiles if _is_of(each, batch, wanted_type))
        return _newest(_last_by_kind(fitting), wanted_type, self.devices)


def _is_of(profile: Any, batch: Json, wanted_type: type[Profile]) -> bool:
    return isinstance(profile, wanted_type) and profile.batch == batch


def _last_by_kind(profiles: Iterable[Any]) -> dict[str, Any]:
    """The last profile of each kind of device, the newest last."""
    by_kind: dict[str, Any] = {}
    for profile in profiles:
        kind = profile.kind if isinstance(profile, RanksProfiled) else profile.device
        by_kind.pop(kind, None)
        by_kind[kind] = profile
    return by_kind


def _newest(by_kind: dict[str, Any], wanted_type: type[Profile], devices: Sequence[str]) -> Profile | None:
    of_them = (
        profile
        for kind, profile in reversed(by_kind.items())
        if wanted_type is PackingProfiled or matches_device(kind, devices)
    )
    return next(of_them, None)


def _is_alike(log: EventLog, stream: str, opened: PlanOpened) -> bool:
    """Whether a plan trains the same models; False if this version cannot read the plan."""
    try:
        other = log.read(stream, limit=1)[0].event
    except UnknownEvent:
        return False
    return isinstance(other, PlanOpened) and _training_identity(other) == _training_identity(opened)


def _training_identity(opened: PlanOpened) -> tuple[object, ...]:
    return opened.trainer, opened.trainer_version, opened.trainer_args, opened.shards, opened.parallel
