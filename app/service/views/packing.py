"""How the packs of a plan did: what was measured on a device, beside how many trials they had."""

from __future__ import annotations

from typing import Any

from app.domain.events import PackingProfiled
from app.domain.search_plan import SearchPlan
from app.scheduling.packs import better_width, times_faster

Json = dict[str, Any]


def packing(plan: SearchPlan, at_once: float | None = None) -> Json:
    """How many trials its packs have room for and, by kind of device, how that does there.

    at_once: how many they had on the average; None for as many as there is room for. `chosen`: why they are as wide as
    they are, where that was left to be chosen.
    """
    width = plan.packing or 0
    trials = width if at_once is None else at_once
    devices = [_packing_on(each, width, trials) for each in plan.profiles.values()] if width else []
    view = {"width": width, "at_once": at_once, "devices": devices}
    return view | ({"chosen": plan.packing_reason} if plan.packing_reason else {})


def _packing_on(profile: PackingProfiled, width: int, trials: float) -> Json:
    """`better`: another width with which so many trials at once would have got on faster there; 0 is no packing.

    `exact`: whether a model had the bits that it has alone, on the batch that was measured. `other_draws`: its
    first module that draws other random numbers in a pack than alone, if one does.
    """
    if profile.refusal:
        return {"device": profile.device, "refusal": profile.refusal}

    def speed(lanes: int) -> float:
        return round(times_faster(trials, lanes, profile), 2)

    found = {"device": profile.device, "lanes": width, "times_faster": speed(width), "exact": profile.exact}
    if profile.other_draws:
        found["other_draws"] = profile.other_draws
    better = better_width(trials, width, profile)
    return found if better is None else found | {"better": {"packing": better, "times_faster": speed(better)}}
