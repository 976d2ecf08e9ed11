"""The past by the log: plans as they were at an earlier moment, and earlier measurements of a trainer.

A few of the earlier plans stay in memory, and go on from where they are: a walk through a log forwards folds
each event once. Of measurements, those of all plans of one trainer, version and arguments count, with any seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock

from app.domain.chain_assignment import matches_device
from app.domain.events import Json, PackingProfiled, PlanOpened, Profile, RanksProfiled
from app.domain.evolve import collector_paused, evolve, strikes
from app.domain.search_plan import SearchPlan
from app.events.codec import UnknownEvent
from app.events.log import EventLog

MOMENTS_KEPT = 4
MOMENT_BATCH = 5_000


class Snapshots:
    """The plans of earlier moments. Safe to share between threads; one looks at a time."""

    def __init__(self, log: EventLog, kept: int = MOMENTS_KEPT) -> None:
        self._log, self._kept = log, kept
        self._plans: list[tuple[str, SearchPlan]] = []  # the one used last is last
        self._lock = Lock()

    @contextmanager
    def holding(self, stream: str, version: int) -> Iterator[SearchPlan]:
        """The plan of a stream after its event `version`, which there must be. Nobody changes it within the block."""
        with self._lock:
            plan = self._nearest(stream, version)
            if not self._fold(stream, plan, version):  # a study was struck since: none of its events counts
                plan = SearchPlan(struck=self._log.struck(stream))
                self._fold(stream, plan, version)
            self._plans = [*self._plans, (stream, plan)][-self._kept :]
            yield plan

    def _nearest(self, stream: str, version: int) -> SearchPlan:
        """The latest one that is not past the moment, taken out; or an empty one."""
        earlier = [each for each in self._plans if each[0] == stream and each[1].version <= version]
        if not earlier:
            return SearchPlan(struck=self._log.struck(stream))
        nearest = max(earlier, key=lambda each: each[1].version)
        self._plans = [each for each in self._plans if each is not nearest]
        return nearest[1]

    def _fold(self, stream: str, plan: SearchPlan, version: int) -> bool:
        """Go on to the moment. False where a struck study is in the plan."""
        with collector_paused():
            while plan.version < version:
                limit = min(MOMENT_BATCH, version - plan.version)
                batch = self._log.read(stream, after=plan.version, limit=limit)
                if not batch or not strikes(each.event for each in batch) <= plan.struck:
                    return False
                for each in batch:
                    evolve(plan, each.event)
                    plan.version = each.version
        return True


def packs_on_record(log: EventLog, opened: PlanOpened, batch: Json) -> dict[str, PackingProfiled]:
    """The measurements of packs, by kind of device, as `profiles_on_record`.

    Whether packs were exact is said of the plan's own only, since that goes by their width.
    """
    profiles = profiles_on_record(log, opened, batch, PackingProfiled)
    return {device: replace(profile, exact=False) for device, profile in profiles.items()}


def profiles_on_record(
    log: EventLog, opened: PlanOpened, batch: Json, wanted_type: type[Profile]
) -> dict[str, Profile]:
    """The last one of each kind of device that was measured with such a batch, the newest last.

    Raises `DatabaseUnavailable`.
    """
    by_kind: dict[str, Profile] = {}
    for recorded in log.profiles():
        profile = recorded.event
        if isinstance(profile, wanted_type) and profile.batch == batch and _is_alike(log, recorded.stream, opened):
            kind = profile.kind if isinstance(profile, RanksProfiled) else profile.device
            by_kind.pop(kind, None)
            by_kind[kind] = profile
    return by_kind


def last_profile(
    log: EventLog, opened: PlanOpened, batch: Json, wanted_type: type[Profile], devices: Sequence[str] = ()
) -> Profile | None:
    """The newest, of ranks on a kind of device that these name. Raises `DatabaseUnavailable`."""
    profiles = reversed(profiles_on_record(log, opened, batch, wanted_type).items())
    of_them = (each for kind, each in profiles if wanted_type is PackingProfiled or matches_device(kind, devices))
    return next(of_them, None)


def _is_alike(log: EventLog, stream: str, opened: PlanOpened) -> bool:
    """Whether the models of a plan are the same; not if this version cannot read that."""
    try:
        other = log.read(stream, limit=1)[0].event
    except UnknownEvent:
        return False
    return isinstance(other, PlanOpened) and _trained(other) == _trained(opened)


def _trained(opened: PlanOpened) -> tuple[object, ...]:
    return opened.trainer, opened.trainer_version, opened.trainer_args, opened.shards, opened.parallel
