"""The terms of the domain: ids, states and kinds, the errors of a refused command, and the scopes of principals.

Plans and nodes are named by a hash of their content. Equal beginnings get equal names, so sharing needs no merge code
(law 1 of CONTRIBUTING.md). The values of the states are stored in events and are part of the REST API.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Literal, NewType

PlanId = NewType("PlanId", str)
"""The id of a search plan (one trainer, version, arguments and seed), and of its event stream."""

NodeId = NewType("NodeId", str)
"""The id of a node of a search plan: the sequences in force from a start step on, under a parent."""

StudyId = NewType("StudyId", str)
ChainId = NewType("ChainId", str)
TrialKey = tuple[StudyId, int]
"""A study, and the number of a trial in it, from 0."""


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def canonical_json(value: Any) -> str:
    """The canonical JSON of a value: sorted keys, no spaces, no NaN."""
    return _CANONICAL.encode(value)


def digest(*parts: Any) -> str:
    """Sixteen bytes of SHA-256 over the canonical JSON of `parts`, in hexadecimal."""
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:32]


PACK_NUMBERS = 8
"""The version of the arithmetic of packs. Raise it when a change of kernels or optimizer steps alters last bits.

It is part of the ids of plans with packs, so that stages with different bits are never shared."""


LAUNCHED = "launched"
"""The value of `parallel` for a script whose own launcher starts the ranks, all on the leader's machine."""


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
    shards: int = 0,
    parallel: str = "tree",
) -> PlanId:
    """The plan that studies with these arguments share. Arguments are as in `PlanOpened`.

    Default values are left out of the hash, so that a new argument does not change the ids of existing plans.
    """
    parts = [trainer, version, trainer_args, seed, *([] if determinism == "strict" else [determinism])]
    if packing != 0:
        parts.append({"packing": "auto" if packing is None else packing, "numbers": PACK_NUMBERS})
    if begin is not None:
        parts.append({"begin": begin})
    if inputs:
        parts.append({"inputs": list(inputs)})
    if project:
        parts.append({"project": project})
    if shards:
        parts.append({"shards": shards})
    if parallel != "tree":
        parts.append({"parallel": parallel})
    return PlanId("plan-" + digest(*parts))


def node_id(parent: str, start: int, form_ids: Mapping[str, str]) -> NodeId:
    """The id of the node with the canonical sequences `form_ids` from step `start` on, under `parent`.

    The end step is not part of the id. `parent` of a root is empty, or names the trial if the study does not merge.
    """
    return node_id_of_parts(parent, start, (node_id_part(name, form_ids[name]) for name in sorted(form_ids)))


def node_id_part(name: str, form_id: str) -> str:
    """What the id of a node is made of for one hyper-parameter."""
    return f"{_escape_separators(name)}\x1e{form_id}"


def node_id_of_parts(parent: str, start: int, parts: Iterable[str]) -> NodeId:
    """`node_id` from the parts of its hyper-parameters, in the order of their names."""
    text = "\x1f".join((parent, str(start), *parts))
    return NodeId(hashlib.sha256(text.encode()).hexdigest()[:32])


def average_id(shares: Sequence[tuple[NodeId, int, float]]) -> NodeId:
    """The node of the mean of these states, each given by its node, its step and its weight."""
    return NodeId(digest("average", [list(share) for share in shares]))


Place = tuple[NodeId, int]
"""A node and a step in it, start < step; or a node and its start, for one that begins there without a parent."""


def _escape_separators(name: str) -> str:
    """Escape the separators of an id in a hyper-parameter's name, injectively. Printable names stay as they are."""
    return name if name.isprintable() else name.translate(_ESCAPES)


_ESCAPES = str.maketrans({"\x10": "\x10\x10", "\x1e": "\x10e", "\x1f": "\x10f"})


class Word(StrEnum):
    """A string enum whose repr is the quoted value."""

    def __repr__(self) -> str:
        return repr(self.value)


class StudyState(Word):
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TrialState(Word):
    """`ACTIVE`: waits for a result. `COMPLETED`: has all requested results."""

    ACTIVE = "active"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    CANCELLED = "cancelled"


TrialDisplayState = Literal["waiting", "running", "completed", "pruned", "failed", "cancelled"]
"""A trial's state for display. Active trials are waiting or running; `app.domain.leaderboard` says which are pruned."""


class TrialEventKind(Word):
    """The kind of a line in a study's history."""

    START = "start"
    PROMOTE = "promote"
    STOP = "stop"
    PRIORITIZE = "prioritize"
    RESULT = "result"
    FAIL = "fail"
    CANCEL = "cancel"


class ChainOutcome(Word):
    """Why a chain ended.

    `DONE`: all stages are trained and saved. `LOST`: the worker died. `UNDELIVERED`: a message starting a stage never
    arrived. `STOPPED`: no trial waits for it, another study got the slot, or the worker shuts down. `INTERRUPTED`:
    another accident, neither the worker's death nor an error of the user's code. The stages are assigned again.
    """

    DONE = "done"
    LOST = "lost"
    UNDELIVERED = "undelivered"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class FailureKind(Word):
    """Why training failed.

    `EXCEPTION`, `OUT_OF_MEMORY`, `DEVICE` (a CUDA error), `CRASH` (the trainer's process died) and `HANG` (no progress
    before the deadline) are tried again in a fresh process before they count. `POISON`: the training process died too
    often, the last time with no other stage in it. `METRIC`: the study's metric is not reported. `NAN`: the metric is
    not finite. `STORAGE`: the initial weights cannot be used.
    """

    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out_of_memory"
    DEVICE = "device"
    CRASH = "crash"
    HANG = "hang"
    POISON = "poison"
    METRIC = "metric"
    NAN = "nan"
    STORAGE = "storage"


FAILURES = (*FailureKind, ChainOutcome.LOST, ChainOutcome.UNDELIVERED, ChainOutcome.INTERRUPTED)
"""Every way in which a stage fails or a chain ends by accident."""


class VerificationKind(Word):
    """The subject of a verification: see `app.exactness`.

    `CHECK`: a trainer's first steps, before anything of the plan is trained. `HANDOVER`: steps around a resumption,
    once with and once without it. `WHOLE`: a trial, trained again from step 0 without a break. `AUDIT`: a finished
    stage, trained again from a state before its beginning. `EVALUATION`: the state before and after an evaluation.
    """

    CHECK = "check"
    HANDOVER = "handover"
    WHOLE = "whole"
    AUDIT = "audit"
    EVALUATION = "evaluation"


class Verdict(Word):
    """Whether resumed training ends with the same bits as uninterrupted training.

    `VERIFIED`: every step where trials branch was compared, and a whole trial was equal. `CHECKED`: every such step was
    compared. `UNCHECKED`: some were not. `INEXACT`: something differed. `UNSHARED`: no result depends on a saved state.
    """

    VERIFIED = "verified"
    CHECKED = "checked"
    UNCHECKED = "unchecked"
    INEXACT = "inexact"
    UNSHARED = "unshared"


class InexactPolicy(Word):
    """The reaction to an inexact trainer: train each trial `ALONE`, `REFUSE` the study, or `ALLOW` sharing."""

    ALONE = "alone"
    REFUSE = "refuse"
    ALLOW = "allow"


class ChainState(Word):
    """The state of a chain's row. `SAVING`: all stages are trained, the slot is free, checkpoints are uploading."""

    READY = "ready"
    RUNNING = "running"
    SAVING = "saving"
    DONE = "done"
    ENDED = "ended"


FINAL_STATES = frozenset({StudyState.COMPLETED, StudyState.FAILED, StudyState.CANCELLED})


class Refused(Exception):
    """A refused command. The message is one sentence for the caller."""


class Unknown(Refused):
    """The study or trial does not exist."""


class StateConflict(Refused):
    """The study or trial is not in a state that allows this."""


class Scope(IntEnum):
    """The rights of a principal. Each scope includes those before it.

    SUBMIT: submit studies, and change one's own. OPERATE: change the studies of others, and slots. ADMIN: create and
    revoke tokens.
    """

    READ = 1
    SUBMIT = 2
    OPERATE = 3
    ADMIN = 4

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, word: str) -> Scope:
        """The scope of that name, in any case. Raises `ValueError`."""
        try:
            return cls[word.strip().upper()]
        except KeyError:
            raise ValueError(f"must be one of {', '.join(map(str, cls))}, got {word!r}") from None


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller."""

    name: str
    """The name of the token or, behind a proxy, of the user; "" if no token was needed."""
    scope: Scope
    project: str | None = None
    """The project that the scope applies to; None for all."""
    max_slot_seconds: float | None = None
    """The slot time that all studies of the token may take; None for no limit."""
    is_agent: bool = False
    """Whether the call came by way of the tools for agents."""

    @property
    def signature(self) -> str:
        """The name in the log: `ci`, or `ci/agent` for an agent with the token `ci`; "" if no token was needed."""
        return "/".join(filter(None, (self.name, "agent" if self.is_agent else "")))

    def can_see(self, project: str) -> bool:
        return self.project in (None, project)

    def can_see_all_of(self, project: str | None) -> bool:
        """Whether they see everything that a principal of this project sees; None stands for all projects."""
        return self.project in (None, project)

    def can_change(self, owner: str) -> bool:
        """Whether they may change a study of this owner in a project that they can see."""
        return self.scope >= (Scope.SUBMIT if owner == self.name else Scope.OPERATE)


ANONYMOUS_ADMIN = Principal("", Scope.ADMIN)
"""The caller where no token is needed."""
