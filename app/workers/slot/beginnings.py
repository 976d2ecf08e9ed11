"""Where a chain's model begins, and from which code and arguments it is built.

Runs on: the thread that trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.domain.chain_assignment import ChainAssignment
from app.registry import TrainerSource
from app.workers.slot.claim import TrainerVersionMismatch
from app.workers.template import TemplateKey

Place = tuple[str, str, int]
"""Plan, node and step."""


class ModelMisplaced(Exception):
    """The model in memory is not where the stage begins, which is a fault of ours."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a model was built from; another chain may use it if all fields are equal.

    names: of the hyper-parameters that it was set up with, since they cannot be removed.
    """

    source: TrainerSource
    plan: str
    args: str
    names: frozenset[str]

    @classmethod
    def from_assignment(cls, source: TrainerSource, work: ChainAssignment) -> Built:
        return cls(source, work.plan, repr(arguments(work)), frozenset(work.hp))


def template_key(source: TrainerSource, work: ChainAssignment) -> TemplateKey:
    """Identifies the template for a chain. Its forks are set up with their own hyper-parameters."""
    how = (work.seed, work.determinism, work.shards, work.parallel)
    return TemplateKey(source, work.trainer, repr(arguments(work)), *how)


def arguments(work: ChainAssignment) -> dict[str, Any]:
    """The trainer's constructor arguments besides seed and device."""
    return {**work.trainer_args, **work.runtime_args}


def build_arguments(source: TrainerSource, work: ChainAssignment) -> dict[str, Any]:
    """The arguments of `Child.build`."""
    what = {"file": str(Path(source.path).resolve()), "name": work.trainer, "args": arguments(work), "seed": work.seed}
    return {**what, "determinism": work.determinism, "shards": work.shards, "parallel": work.parallel}


def beginning(work: ChainAssignment, index: int) -> Place | None:
    """Where a stage begins; None at step 0."""
    if index > 0:
        return (work.plan, work.stages[index - 1].node, work.stages[index].start)
    return (work.plan, work.resume.node, work.resume.step) if work.resume else None


def source_of(work: ChainAssignment, sources: Mapping[str, TrainerSource]) -> TrainerSource:
    """The trainer that a chain needs, from a slot's trainers by name. Raises `TrainerVersionMismatch`."""
    source = sources.get(work.trainer)
    if source is None or source.version != work.trainer_version:
        has = "none" if source is None else f"version {source.version}"
        needed = f"trainer {work.trainer!r} in version {work.trainer_version}"
        raise TrainerVersionMismatch(f"the chain needs {needed}; this slot has {has}")
    return source
