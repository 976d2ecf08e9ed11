"""What a study reads besides its trainer's code, as it stands on record, and what is wrong with that.

A record of an input is a JSON object with its `path` and, once somebody has seen it, `files`, `bytes`, a `stamp` of
sizes and times and, where it is small, the `sha256` of its content; `missing` where it was not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.domain.search_plan import SearchPlan, Study

Json = dict[str, Any]


def mark(record: Mapping[str, Any]) -> Json:
    """What tells an input from another: its content, or else its sizes and times, wherever it lies; else its path."""
    if "sha256" in record:
        return {"sha256": record["sha256"]}
    if "stamp" in record:
        return {"stamp": record["stamp"]}
    return {"path": record["path"]}


def is_unseen(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there are inputs, and nobody has looked at them yet: they are looked at together."""
    return bool(records) and not any(name in record for record in records for name in ("stamp", "missing"))


def problems(plan: SearchPlan, study: Study) -> Iterator[str]:
    """Why results of a study may be of other inputs than it seems, in sentences."""
    if is_unseen(study.inputs):
        yield "what it reads was not looked at: the server does not see it, and no slot has trained for it yet"
        return
    for path in study.other_inputs:
        yield f"{path} was not the same on all slots, or at all times"
    for other in plan.studies.values():
        if other.id != study.id and not is_unseen(other.inputs):
            for mine, theirs in zip(study.inputs, other.inputs, strict=False):
                if mark(mine) != mark(theirs):
                    yield f"{mine['path']} was another when study {other.id} read it, with which it shares what it can"
