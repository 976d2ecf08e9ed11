"""Event to JSON and back. Every release reads what 0.1.0 and later releases have written.

To change a shape, raise its number in `VERSIONS`, put a function from the old data to the new into `UPCASTERS`, and add
a line to tests/golden/events.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from math import isfinite
from typing import Any, get_args

from pydantic_core import from_json

from app.domain.events import (
    AverageNamed,
    ChainAssigned,
    ChainEnded,
    CheckpointCached,
    CheckpointKept,
    Evaluated,
    Event,
    ExactnessTested,
    MeanShare,
    Stage,
    StageFailed,
    StoredPart,
)
from app.domain.terms import ChainOutcome, FailureKind, VerificationKind


def read_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`.

    Equal short strings are one object, also of several texts: each event of a trial names its hyper-parameters, nodes
    and chains again, and plans hold thousands of them.
    """
    try:
        return from_json(text, cache_strings="all")
    except ValueError:  # half a surrogate pair, or very deep: the standard library reads both
        return json.loads(text)


Data = dict[str, Any]

TYPES: dict[str, type] = {cls.__name__: cls for cls in get_args(Event)}
FIELDS: dict[type, tuple[str, ...]] = {cls: tuple(f.name for f in fields(cls)) for cls in (*TYPES.values(), Stage)}


VERSIONS: dict[str, int] = dict.fromkeys(TYPES, 1)
"""The schema version in which each type is written. All begin at 1 in release 0.1.0."""

UPCASTERS: dict[tuple[str, int], Callable[[Data], Data]] = {}
"""Pure functions from (type, version) to the data of the next version. They are chained."""


ADVICE = "Use the version of stagetree that wrote it, or a new --dir or database."


class UnknownEvent(Exception):
    """The log holds an event that this version cannot read."""


class Unwritable(Exception):
    """An event that cannot be written as JSON; a retry would fail too."""


def encode(event: Event) -> tuple[str, int, Data]:
    """The type name, the schema version and the JSON data of `event`. Raises `UnknownEvent` for anything else."""
    name = type(event).__name__
    if TYPES.get(name) is not type(event):
        raise UnknownEvent(f"{name} is not an event.")
    return name, VERSIONS[name], _ENCODERS.get(name, _plain)(event)


def write(event: Event) -> tuple[str, int, str]:
    """As `encode`, with the data as JSON text. Raises `Unwritable`."""
    try:
        type, version, data = encode(event)
        return type, version, json.dumps(data, allow_nan=False)
    except (UnknownEvent, TypeError, ValueError, RecursionError) as error:
        raise Unwritable(f"{event!r:.200} cannot be written: {error}") from error


def decode(type: str, version: int, data: Data) -> Event:
    """Raises `UnknownEvent` for an unknown type, version or field."""
    if type not in TYPES:
        raise UnknownEvent(f"The log holds an event of type {type!r}, which this version does not know. {ADVICE}")
    data = _upcast(type, version, data)
    try:
        return _DECODERS[type](data)
    except (TypeError, KeyError, ValueError) as error:
        raise UnknownEvent(f"The data of a {type} event, version {version}, does not fit: {error}.") from error


def _upcast(type: str, version: int, data: Data) -> Data:
    while version != VERSIONS[type]:
        if (type, version) not in UPCASTERS:
            what = f"a {type} event of version {version}, which this version cannot read"
            raise UnknownEvent(f"The log holds {what}. {ADVICE}")
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
    proof = None if data["proof"] is None else VerificationKind(data["proof"])
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
    return ExactnessTested(**(data | {"proof": VerificationKind(data["proof"])}))


def _encode_evaluated(event: Evaluated) -> Data:
    """JSON has no NaN and no infinity: such a metric is stored as null."""
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
