"""What a chain's row tells its worker, which reads nothing else: a typed value, and its JSON with a version.

A live chain's row may be read by a process of another version: a form that is not known is passed over, not failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from app.domain.events import Stage

FORMAT = 2
"""Of the JSON. 1 had no number, `spare_bytes`, and neither runtime arguments nor determinism."""


class UnknownFormat(Exception):
    """The row was written by another version, in a form that this one cannot read."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoint at which a chain begins."""

    node: str
    step: int
    key: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAssignment:
    """Train these stages in a row, from `resume` or from step 0, with the values of `hp`.

    study, trial: on whose behalf it runs; its log is kept under them. intermediate_bytes: how much the chain may keep
    in checkpoints inside its stages.
    """

    plan: str
    trainer: str
    trainer_version: str
    trainer_args: Mapping[str, Any]
    seed: int
    study: str
    trial: int
    hp: Mapping[str, Any]
    stages: tuple[Stage, ...]
    resume: ResumePoint | None
    intermediate_bytes: int = 0
    runtime_args: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChainAssignment:
        """Raises `UnknownFormat`."""
        fields = dict(data)
        if (version := fields.pop("format", 1)) != FORMAT:
            raise UnknownFormat(f"a chain was assigned in format {version}; this version reads format {FORMAT}")
        fields["stages"] = tuple(Stage(**{**stage, "evaluate": tuple(stage["evaluate"])}) for stage in fields["stages"])
        fields["resume"] = fields["resume"] and ResumePoint(**fields["resume"])
        return cls(**fields)
