"""Identity by content: equal beginnings get equal names, so sharing needs no merge code (law 1 of CONTRIBUTING.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NewType

PlanId = NewType("PlanId", str)
"""Names one search plan: a trainer, its version, its arguments and a seed. Also the name of its event stream."""

NodeId = NewType("NodeId", str)
"""Names one node of a search plan: the sequences in force from a start step, under a parent."""

StudyId = NewType("StudyId", str)
ChainId = NewType("ChainId", str)
TrialKey = tuple[StudyId, int]
"""A trial is named by its study and its number there, counted from 0."""


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(*parts: Any) -> str:
    """Sixteen bytes of SHA-256 over the canonical JSON of `parts`, in hexadecimal."""
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:32]


def plan_id(
    trainer: str,
    version: str,
    trainer_args: Mapping[str, Any],
    seed: int,
    determinism: str = "strict",
    packing: int | None = 0,
    begin: Mapping[str, Any] | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    project: str = "",
) -> PlanId:
    """The plan that studies with these share. What is as ever is no part of it, so that plans keep their names.

    packing: as in `PlanOpened`; None is a name of its own, whatever will be chosen. begin, inputs,
    project: as in `PlanOpened`.
    """
    parts = [trainer, version, trainer_args, seed, *([] if determinism == "strict" else [determinism])]
    if packing != 0:
        parts.append({"packing": "auto" if packing is None else packing})
    if begin is not None:
        parts.append({"begin": begin})
    if inputs:
        parts.append({"inputs": list(inputs)})
    if project:
        parts.append({"project": project})
    return PlanId("plan-" + digest(*parts))


def node_id(parent: str, start: int, form_ids: Mapping[str, str]) -> NodeId:
    """The node of canonical sequences `form_ids` that begins at step `start` under `parent`.

    The end step is not part of it. A root's `parent` is empty, or names the trial when a study does not merge.
    """
    text = "\x1f".join([parent, str(start), *(f"{_escaped(name)}\x1e{form_ids[name]}" for name in sorted(form_ids))])
    return NodeId(hashlib.sha256(text.encode()).hexdigest()[:32])


def _escaped(name: str) -> str:
    """A hyper-parameter's name without the separators of an id; no two names become one. Ordinary names stay."""
    return name if name.isprintable() else name.translate(_ESCAPES)


_ESCAPES = str.maketrans({"\x10": "\x10\x10", "\x1e": "\x10e", "\x1f": "\x10f"})
