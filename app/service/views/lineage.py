"""Where a study's weights come from, what it reads, and what it is trained with: for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.search_plan import SearchPlan, Study
from stagetree.models.pages import Environment, Environments

Json = dict[str, Any]

SHORT = 8
"""So much of a hash is enough to tell files apart by eye."""


def lineage(study: Study) -> Json:
    """`begins`: the weights that the study begins from; `inputs`: what it reads. Without those that it has not."""
    found: Json = {}
    if study.begin is not None:
        about = {name: value for name, value in study.begin.items() if name != "key"}
        found["begins"] = {"text": begins_text(study.begin), **about}
    if study.inputs:
        found["inputs"] = study.inputs
    return found


def begins_text(begin: Mapping[str, Any]) -> str:
    """In words that follow "the study" or "the trial"."""
    whole = ", with optimizer and generators" if begin["state"] else ""
    if "file" in begin:
        name = str(begin["file"]).rpartition("/")[2]
        return f"begins from {name} ({begin['sha256'][:SHORT]}){whole}"
    return f"begins from trial {begin['trial']} of study {begin['study']} at step {begin['step']}{whole}"


def begins_shortly(begin: Mapping[str, Any]) -> str:
    """The same for a list, in words that follow "begins from"."""
    if "file" in begin:
        return f"{str(begin['file']).rpartition('/')[2]} ({begin['sha256'][:SHORT]})"
    return f"{begin['study']} trial {begin['trial']} @ {begin['step']}"


def environments(plan: SearchPlan) -> Environments:
    """What the plan was trained with, on each kind of device."""
    return Environments(
        devices=[Environment(device=each.device, **each.environment) for each in plan.environments.values()]
    )
