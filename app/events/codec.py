"""Event to JSON and back. What was once written can be read forever: an old shape is upcast, never edited.

To change a shape: raise its number in `VERSIONS` and put a pure function from the old data to the new in `UPCASTERS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from math import isfinite
from typing import Any, get_args

from app.domain.events import (
    AverageNamed,
    ChainAssigned,
    ChainEnded,
    CheckpointCached,
    CheckpointKept,
    Evaluated,
    Event,
    ExactnessTested,
    Stage,
    StageFailed,
    StoredPart,
)
from app.domain.means import MeanShare
from app.domain.terms import ChainOutcome, FailureKind, ProofKind

Data = dict[str, Any]

TYPES: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}
FIELDS: dict[type, tuple[str, ...]] = {cls: tuple(f.name for f in fields(cls)) for cls in (*TYPES.values(), Stage)}


def _name_intermediate(data: Data) -> Data:
    return {"intermediate" if name == "spare" else name: value for name, value in data.items()}


def _foretell_as_before(data: Data) -> Data:
    """A study from when bounds were the unit of a curve, `pop` ordered trials by p, and p could end any trial."""
    spec = data["spec"]
    tuner, hopeless = spec.get("tuner", {}), spec.get("stop_hopeless")
    before: Data = {}
    if tuner.get("kind") in ("pop", "early_term"):
        order = {"order_by": "p"} if tuner["kind"] == "pop" else {}
        before["tuner"] = tuner | {"keep_top": 0.0} | order
    if hopeless is not None:
        before["stop_hopeless"] = hopeless | {"keep_top": 0.0}
    if before or tuner.get("promote_by") == "predicted":
        before["curve_model"] = 1
    return data | {"spec": spec | before}


VERSIONS: dict[str, int] = dict.fromkeys(TYPES, 1)
VERSIONS |= {"NoteAdded": 2, "StudyCompleted": 2, "TrialAdded": 3, "TrialExtended": 3}
VERSIONS |= {"ChainAssigned": 3, "ChainEnded": 2, "CheckpointKept": 4, "PackingProfiled": 4, "PlanOpened": 8}
VERSIONS |= {"ExactnessTested": 4, "StageCompleted": 3, "StageFailed": 4}
VERSIONS |= {"StudyReopened": 3, "StudySubmitted": 5}
"""The schema version in which each type is written today."""

UPCASTERS: dict[tuple[str, int], Callable[[Data], Data]] = {
    ("ChainAssigned", 1): lambda data: data | {"proof": None},
    ("ChainAssigned", 2): lambda data: data | {"members": [], "kind": ""},
    ("ChainEnded", 1): lambda data: data | {"died_alone": data["outcome"] == "lost"},
    ("CheckpointKept", 1): _name_intermediate,
    ("CheckpointKept", 2): lambda data: data | {"parts": []},
    ("CheckpointKept", 3): lambda data: data | {"looked": False},
    ("ExactnessTested", 1): lambda data: data | {"unread": []},
    ("ExactnessTested", 2): lambda data: data | {"files": []},
    ("ExactnessTested", 3): lambda data: data | {"goes_on": False},
    ("NoteAdded", 1): lambda data: data | {"by": ""},
    ("PackingProfiled", 1): lambda data: data | {"exact": False},
    ("PackingProfiled", 2): lambda data: data | {"batch": None},
    ("PackingProfiled", 3): lambda data: data | {"other_draws": ""},
    ("PlanOpened", 1): lambda data: data | {"determinism": "strict"},
    ("PlanOpened", 2): lambda data: data | {"packing": 0},
    ("PlanOpened", 3): lambda data: data,  # from here on `packing` may be null
    ("PlanOpened", 4): lambda data: data | {"begin": None, "inputs": []},
    ("PlanOpened", 5): lambda data: data | {"project": ""},
    ("PlanOpened", 6): lambda data: data | {"shards": 0},
    ("PlanOpened", 7): lambda data: data | {"parallel": "tree"},
    ("StageCompleted", 1): lambda data: data | {"peak_bytes": 0},
    ("StageCompleted", 2): lambda data: data | {"shared_process": False},
    ("StageFailed", 1): lambda data: data | {"signature": None},
    ("StageFailed", 2): lambda data: data | {"evaluated": None},
    ("StageFailed", 3): lambda data: data | {"counts_elsewhere": False},
    ("StudyCompleted", 1): lambda data: data | {"reason": {}},
    ("StudyReopened", 1): lambda data: data | {"at": None},
    ("StudyReopened", 2): _foretell_as_before,
    ("StudySubmitted", 1): lambda data: data | {"begin": None, "inputs": []},
    ("StudySubmitted", 2): _foretell_as_before,
    ("StudySubmitted", 3): lambda data: data | {"project": "", "by": ""},
    ("StudySubmitted", 4): lambda data: data | {"other_files": []},
    ("TrialAdded", 1): lambda data: data | {"path": None},
    ("TrialAdded", 2): lambda data: data | {"data_seeds": [], "repeats": []},
    ("TrialExtended", 1): lambda data: data | {"path": None},
    ("TrialExtended", 2): lambda data: data | {"repeats": []},
}
"""(type, version) to the function that turns data of that version into data of the next. Chained, pure."""


class UnknownEvent(Exception):
    """The log holds an event that this version of the software cannot read."""


class Unwritable(Exception):
    """No log can hold this event, however often it is tried: something in it is no JSON."""


def encode(event: Event) -> tuple[str, int, Data]:
    """The type name, the schema version and the JSON data of `event`. Raises `UnknownEvent` for anything else."""
    name = type(event).__name__
    if TYPES.get(name) is not type(event):
        raise UnknownEvent(f"{name} is not an event.")
    return name, VERSIONS[name], _ENCODERS.get(name, _plain)(event)


def write(event: Event) -> tuple[str, int, str]:
    """As `encode`, with the data as the text that stands in the log. Raises `Unwritable`."""
    try:
        type, version, data = encode(event)
        return type, version, json.dumps(data, allow_nan=False)
    except (UnknownEvent, TypeError, ValueError, RecursionError) as error:
        raise Unwritable(f"{event!r:.200} cannot be written: {error}") from error


def decode(type: str, version: int, data: Data) -> Event:
    """The event that was written. Raises `UnknownEvent` where its type, version or fields are not known here."""
    if type not in TYPES:
        raise UnknownEvent(f"The log holds an event of type {type!r}, which this version does not know.")
    data = _upcast(type, version, data)
    try:
        return _DECODERS[type](data)
    except (TypeError, KeyError, ValueError) as error:
        raise UnknownEvent(f"The data of a {type} event, version {version}, does not fit: {error}.") from error


def _upcast(type: str, version: int, data: Data) -> Data:
    while version != VERSIONS[type]:
        if (type, version) not in UPCASTERS:
            raise UnknownEvent(f"The log holds a {type} event of version {version}, which this version cannot read.")
        data = UPCASTERS[type, version](data)
        version += 1
    return data


def _plain(value: Any) -> Data:
    return {name: getattr(value, name) for name in FIELDS[type(value)]}


def _encode_chain(event: ChainAssigned) -> Data:
    stages = [_plain(stage) | {"evaluate": list(stage.evaluate)} for stage in event.stages]
    return _plain(event) | {"stages": stages, "members": list(event.members)}


def _decode_chain(data: Data) -> ChainAssigned:
    stages = tuple(Stage(**(stage | {"evaluate": tuple(stage["evaluate"])})) for stage in data["stages"])
    proof = None if data["proof"] is None else ProofKind(data["proof"])
    return ChainAssigned(**(data | {"stages": stages, "proof": proof, "members": tuple(data["members"])}))


def _encode_average(event: AverageNamed) -> Data:
    return _plain(event) | {"shares": [list(share) for share in event.shares]}


def _decode_average(data: Data) -> AverageNamed:
    return AverageNamed(**(data | {"shares": tuple(MeanShare(*share) for share in data["shares"])}))


def _encode_kept(event: CheckpointKept | CheckpointCached) -> Data:
    return _plain(event) | {"parts": [asdict(part) for part in event.parts]}


def _decode_kept(data: Data) -> CheckpointKept:
    return CheckpointKept(**(data | _parts(data)))


def _decode_cached(data: Data) -> CheckpointCached:
    return CheckpointCached(**(data | _parts(data)))


def _parts(data: Data) -> Data:
    return {"parts": tuple(StoredPart(**part) for part in data["parts"])}


def _decode_ended(data: Data) -> ChainEnded:
    return ChainEnded(**(data | {"outcome": ChainOutcome(data["outcome"])}))


def _decode_failed(data: Data) -> StageFailed:
    return StageFailed(**(data | {"kind": FailureKind(data["kind"])}))


def _decode_tested(data: Data) -> ExactnessTested:
    return ExactnessTested(**(data | {"proof": ProofKind(data["proof"])}))


def _encode_evaluated(event: Evaluated) -> Data:
    """JSON has no NaN and no infinity: such a metric is none."""
    metrics = {name: value if value is None or isfinite(value) else None for name, value in event.metrics.items()}
    return _plain(event) | {"metrics": metrics}


def _decoder(cls: type) -> Callable[[Data], Event]:
    return lambda data: cls(**data)


_ENCODERS: dict[str, Callable[[Any], Data]] = {
    "AverageNamed": _encode_average,
    "ChainAssigned": _encode_chain,
    "CheckpointCached": _encode_kept,
    "CheckpointKept": _encode_kept,
    "Evaluated": _encode_evaluated,
}
_DECODERS: dict[str, Callable[[Data], Event]] = {name: _decoder(cls) for name, cls in TYPES.items()}
_DECODERS |= {
    "AverageNamed": _decode_average,
    "ChainAssigned": _decode_chain,
    "ChainEnded": _decode_ended,
    "CheckpointCached": _decode_cached,
    "CheckpointKept": _decode_kept,
    "ExactnessTested": _decode_tested,
    "StageFailed": _decode_failed,
}
