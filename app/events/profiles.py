"""What plans of the same trainer, version and arguments have measured of packs, whatever their seed."""

from __future__ import annotations

from dataclasses import replace

from app.domain.events import Json, PackingProfiled, PlanOpened
from app.events.codec import UnknownEvent
from app.events.log import EventLog


def profiles_on_record(log: EventLog, opened: PlanOpened, batch: Json) -> dict[str, PackingProfiled]:
    """The last one of each kind of device that was measured with such a batch, the newest last.

    Whether packs were exact is said of the plan's own only, since that goes by their width. Raises
    `DatabaseUnavailable`.
    """
    found: dict[str, PackingProfiled] = {}
    for recorded in log.profiles():
        profile = recorded.event
        assert isinstance(profile, PackingProfiled)
        if profile.batch == batch and _is_alike(log, recorded.stream, opened):
            found.pop(profile.device, None)
            found[profile.device] = replace(profile, exact=False)
    return found


def last_profile(log: EventLog, opened: PlanOpened, batch: Json) -> PackingProfiled | None:
    """On whatever device it was measured."""
    return next(reversed(profiles_on_record(log, opened, batch).values()), None)


def _is_alike(log: EventLog, stream: str, opened: PlanOpened) -> bool:
    """Whether the models of a plan are the same; not if this version cannot read that."""
    try:
        other = log.read(stream, limit=1)[0].event
    except UnknownEvent:
        return False
    return isinstance(other, PlanOpened) and _trained(other) == _trained(opened)


def _trained(opened: PlanOpened) -> tuple[object, ...]:
    return opened.trainer, opened.trainer_version, opened.trainer_args
