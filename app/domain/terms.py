"""The terms of the domain: ids, states and kinds, the errors of a refused command, and the scopes of principals.

Plans and nodes are named by a hash of their content. Equal beginnings get equal names, so sharing needs no merge code
(law 1 of CONTRIBUTING.md). The values of the states are stored in events and are part of the REST API.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Literal, NewType

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


PACK_NUMBERS = 8
"""Which last bits packs have: 2 since steps and kernels are our own, 3 since other optimizers have one step, too, 4
since a CPU computes large models of a pack one by one, 5 since attention of many heads has kernels of our own, too,
6 since batch normalization has them, 7 since NAdam and Rprop have one step, and 8 since linear layers have a backward
pass of our own, a GPU normalizes layers by its kernel for groups, and Adam divides once less.

Part of the names of plans that pack, so that nothing is shared with stages that have others."""


LAUNCHED = "launched"
"""How a plan's ranks train that a script's launcher starts: all of them on the machine of the one that leads."""


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
    """The plan that studies with these share. What is as ever is no part of it, so that plans keep their names.

    packing: as in `PlanOpened`; None is a name of its own, whatever will be chosen. begin, inputs,
    project, shards, parallel: as in `PlanOpened`.
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
    """The node of canonical sequences `form_ids` that begins at step `start` under `parent`.

    The end step is not part of it. A root's `parent` is empty, or names the trial when a study does not merge.
    """
    text = "\x1f".join(
        [parent, str(start), *(f"{_escape_separators(name)}\x1e{form_ids[name]}" for name in sorted(form_ids))]
    )
    return NodeId(hashlib.sha256(text.encode()).hexdigest()[:32])


Place = tuple[NodeId, int]
"""A node and a step in it, start < step; or a node and its start, for one that begins there without a parent."""


def _escape_separators(name: str) -> str:
    """A hyper-parameter's name without the separators of an id; no two names become one. Ordinary names stay."""
    return name if name.isprintable() else name.translate(_ESCAPES)


_ESCAPES = str.maketrans({"\x10": "\x10\x10", "\x1e": "\x10e", "\x1f": "\x10f"})


class Word(StrEnum):
    """A word that is written as it is wherever it is shown."""

    def __repr__(self) -> str:
        return repr(self.value)


class StudyState(Word):
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TrialState(Word):
    """`ACTIVE`: waits for a result. `COMPLETED`: all that it was asked for is there."""

    ACTIVE = "active"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    CANCELLED = "cancelled"


TrialDisplayState = Literal["waiting", "running", "completed", "stopped", "failed", "cancelled"]
"""How a trial's state is shown: an active one waits for a slot, or is trained on one."""


class TrialEventKind(Word):
    """What a line of a study's history says of a trial."""

    START = "start"
    PROMOTE = "promote"
    STOP = "stop"
    PRIORITIZE = "prioritize"
    RESULT = "result"
    FAIL = "fail"
    CANCEL = "cancel"


class ChainOutcome(Word):
    """Why nothing more comes from a chain.

    `DONE`: all is trained and saved. `LOST`: its worker is gone. `UNDELIVERED`: a message that starts one of its stages
    never arrived. `STOPPED`: nobody wants it any more, another study got its slot, or its worker was asked to end.
    `INTERRUPTED`: an accident that is neither the worker's death nor the user's code; the work comes back, and nobody
    is to blame.
    """

    DONE = "done"
    LOST = "lost"
    UNDELIVERED = "undelivered"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class FailureKind(Word):
    """What was wrong with the user's work.

    `EXCEPTION`, `OUT_OF_MEMORY`, `DEVICE` (a CUDA error), `CRASH` (the trainer's process died) and `HANG` (no progress
    before the deadline) are tried again in a fresh process before they count. `POISON`: the process that trained it
    died too often, the last time with no other stage beside it. `METRIC`: the study's metric is not reported. `NAN`: it
    is not a finite number. `STORAGE`: the weights that it begins from cannot be used.
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


class VerificationKind(Word):
    """How two ways of training were compared: see `app.exactness`.

    `CHECK`: a trainer's first steps, before anything else of the plan is trained. `HANDOVER`: steps around a resumption
    in a fresh process, without it where the record has it and with it where the record has not. `WHOLE`: a trial from
    step 0 without a break. `AUDIT`: a finished stage once more, from before the state that it began with. `EVALUATION`:
    the state before and after an evaluation, in the chain that made it.
    """

    CHECK = "check"
    HANDOVER = "handover"
    WHOLE = "whole"
    AUDIT = "audit"
    EVALUATION = "evaluation"


class Verdict(Word):
    """Whether training that resumes from a saved state ends with the same bits as training that never stopped.

    `VERIFIED`: every step at which trials part was compared, and a whole trial was equal. `CHECKED`: every such step
    was compared. `UNCHECKED`: some were not. `INEXACT`: something differed. `UNSHARED`: no result rests on a
    saved state.
    """

    VERIFIED = "verified"
    CHECKED = "checked"
    UNCHECKED = "unchecked"
    INEXACT = "inexact"
    UNSHARED = "unshared"


class InexactPolicy(Word):
    """What a study wants of a trainer that is not exact: each trial `ALONE`, nothing (`REFUSE`), or to share anyway."""

    ALONE = "alone"
    REFUSE = "refuse"
    ALLOW = "allow"


class ChainState(Word):
    """How a chain's row stands. `SAVING`: all is trained, its slot is free, checkpoints are on their way."""

    READY = "ready"
    RUNNING = "running"
    SAVING = "saving"
    DONE = "done"
    ENDED = "ended"


FINAL_STATES = frozenset({StudyState.COMPLETED, StudyState.FAILED, StudyState.CANCELLED})


class Refused(Exception):
    """A command that cannot be accepted; the message is one sentence for whoever gave it."""


class Unknown(Refused):
    """There is no such study or trial."""


class StateConflict(Refused):
    """The study or trial is not in a state that allows this."""


class Scope(IntEnum):
    """What a principal may do. Each scope includes those before it.

    READ: look. SUBMIT: have studies of one's own, and change them. OPERATE: change the studies of others, and slots.
    ADMIN: make and revoke tokens.
    """

    READ = 1
    SUBMIT = 2
    OPERATE = 3
    ADMIN = 4

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, word: str) -> Scope:
        """By its name, as people write it. Raises `ValueError`, which says what would be right."""
        try:
            return cls[word.strip().upper()]
        except KeyError:
            raise ValueError(f"must be one of {', '.join(map(str, cls))}, got {word!r}") from None


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. name: of the token or, behind a proxy, of the user; "" where no token was needed.

    project: the one that the scope is for; None for all projects.
    """

    name: str
    scope: Scope
    project: str | None = None

    def can_see(self, project: str) -> bool:
        """Whether studies of the project are there for them."""
        return self.project in (None, project)

    def can_see_all_of(self, project: str | None) -> bool:
        """Whether all is there for them that a principal of this project, or of all projects, sees."""
        return self.project in (None, project)

    def can_change(self, owner: str) -> bool:
        """Whether they may change a study of this owner, in a project that they see."""
        return self.scope >= (Scope.SUBMIT if owner == self.name else Scope.OPERATE)


ANONYMOUS_ADMIN = Principal("", Scope.ADMIN)
"""A caller that needs no token."""
