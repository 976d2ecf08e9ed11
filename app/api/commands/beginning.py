"""The weights that a study begins from, and its inputs, as they are when it is submitted.

What it begins from is copied into the store of checkpoints before the study is on record, under a key of its own: the
file may change afterwards, and the other study may be deleted. Whatever comes between leaves an object that no event
names, as a worker does that is killed (docs/decisions/0025-orphans.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from app.api.files.checkpoints import kept_state
from app.api.services import Services
from app.domain import keeping
from app.domain.errors import Unknown
from app.inputs import InputMissing, look, may_be_read
from app.object_store import PART, StoreUnavailable
from stagetree.runtime.weight_files import kind_of
from stagetree.spec import BeginFrom, Problem, SpecError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Where weights come from. said: what goes on record of that. parts: reads them, once more each time."""

    said: Json
    sha256: str
    size: int
    parts: Callable[[], Iterator[bytes]]


def find_source(use: Services, given: BeginFrom) -> Source:
    """The file, or the checkpoint of a trial, that is meant. Raises `SpecError`, `StoreUnavailable`."""
    return _of_study(use, given) if given.file is None else _of_file(use, given, given.file)


def inputs_seen(use: Services, paths: Sequence[str]) -> list[Json]:
    """What is at these paths. One that this server may not look at is left to the workers. Raises `SpecError`."""
    found, problems = list[Json](), list[Problem]()
    is_ours = all(may_be_read(path, use.study_files) for path in paths)
    for number, path in enumerate(paths):
        try:
            if not path.startswith("/"):
                problems.append(Problem(f"inputs[{number}]", f"must be an absolute path here, got {path}"))
            else:
                found.append(look(path) if is_ours else {"path": path})
        except InputMissing as problem:
            problems.append(Problem(f"inputs[{number}]", f"must be a file or a folder that can be read: {problem}"))
    if problems:
        raise SpecError(problems)
    return found


def stored(use: Services, stream: str, source: Source) -> tuple[str, bool]:
    """The key of the object in the store that has the weights, for a study on a plan; whether it was just written.

    Raises `SpecError` where the file was changed meanwhile, and `StoreUnavailable`.
    """
    if stream in use.log.versions():
        with use.plans.holding(stream) as plan:
            if there := sorted(keeping.weights_in_use(plan)):  # all hold the same: it is in the plan's name
                return there[0], False
    key, digest = f"{stream}/begin-{use.new_id()[:12]}", sha256()
    try:
        use.store.write(key, _hashed(source.parts(), digest))
    except Exception as error:  # whatever the client of the store raises
        raise StoreUnavailable(f"{key} cannot be written: {type(error).__name__}: {error}") from error
    if digest.hexdigest() != source.sha256:
        use.store.delete(key)
        raise SpecError([Problem("begin_from", "must stay as it is: it was changed while it was copied")])
    return key, True


def _hashed(parts: Iterator[bytes], digest: Any) -> Iterator[memoryview]:
    for part in parts:
        digest.update(part)
        yield memoryview(part)


def _of_file(use: Services, given: BeginFrom, file: str) -> Source:
    def refuse(problem: str) -> SpecError:
        return SpecError([Problem("begin_from.file", problem)])

    if not file.startswith("/"):
        raise refuse(f"must be an absolute path here, got {file}")
    if not may_be_read(file, use.study_files):
        where = ", ".join(use.study_files) or "no folder"
        raise refuse(
            f"must be a file of the server that studies may name, and STAGETREE_STUDY_FILES there names {where}, got "
            f"{file}; or name a study and a trial of this server"
        )
    path, digest = Path(file), sha256()
    try:
        with path.open("rb") as opened:
            kind = kind_of(opened)
            opened.seek(0)
            while part := opened.read(PART):
                digest.update(part)
            size = opened.tell()
    except OSError as error:
        raise refuse(f"must be a file that can be read: {file}: {error.strerror or error}") from None
    if kind is None:
        raise refuse(f"must be safetensors, a file of torch.save, or a checkpoint of stagetree, and {file} is neither")
    if given.state and kind != "checkpoint":
        raise refuse(f"must be a checkpoint of stagetree for state: true, and {file} has weights alone")
    said = {"file": file, "state": given.state}
    return Source(said, digest.hexdigest(), size, lambda: _parts_of(path))


def _parts_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(PART):
            yield part


def _of_study(use: Services, given: BeginFrom) -> Source:
    trial = None if given.trial in (None, "best") else int(given.trial or 0)
    try:
        row = use.find(str(given.study))
        with use.open_study(row) as (plan, study):
            kept = kept_state(plan, study, trial, given.step)
    except Unknown as problem:
        raise SpecError([Problem("begin_from", f"must be a state that is kept: {problem}")]) from None
    said = {"study": row.id, "trial": kept.trial, "step": kept.step, "state": given.state}
    checkpoint = kept.checkpoint
    return Source(said, checkpoint.sha256, checkpoint.size, lambda: use.store.read(checkpoint.key))
