"""The submission of a study: its plan, its id, and the weights that it begins from.

Weights are copied into the store of checkpoints before the study is recorded, since their file may change and their
study may be deleted. A failure in between leaves an orphan, as a killed worker does (`app.storage.owned_store`).
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.inputs import fingerprint
from app.domain.terms import ANONYMOUS_ADMIN, LAUNCHED, PlanId, Principal, StudyId, Unknown, plan_id
from app.input_fingerprints import InputForbidden, InputMissing, InputUnread, open_file
from app.input_reader import ReadRequest
from app.registry import TrainerSource
from app.search.tuners.base import pin_version
from app.service.files import kept_state, parts
from app.service.services import HttpProblem, Services, Write
from app.service.suggestions import learn_results
from app.service.undeclared_inputs import changed_files, inputs_seen
from app.storage.object_store import PART, StoreUnavailable
from stagetree.runtime.checkpoints.dcp import NotDcp, PackedFolder
from stagetree.runtime.checkpoints.weight_files import kind_of
from stagetree.sinks import SinkError
from stagetree.spec import BeginFrom, Problem, SpecError, StudySpec, reduction_name

Json = dict[str, Any]

MAX_WEIGHTS = 2**40
"""The most bytes that a study begins from, all of which are read and copied into the store."""


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The weights that a study begins from."""

    origin: Json
    """The description in the log."""

    sha256: str
    size: int
    parts: Callable[[], Iterator[bytes] | Iterator[memoryview]]
    """Reads them, from the beginning each time."""


def find_source(use: Services, origin: BeginFrom, who: Principal = ANONYMOUS_ADMIN) -> WeightSource:
    """The file, folder or checkpoint that `begin_from` names. Raises `SpecError`, `StoreUnavailable`."""
    if origin.dcp is not None:
        return _folder_source(use, origin, origin.dcp)
    return _study_source(use, origin, who) if origin.file is None else _file_source(use, origin, origin.file)


def store_weights(use: Services, stream: str, source: WeightSource) -> tuple[str, bool]:
    """Store the weights for a study on a plan; the object's key, and whether it is new.

    Raises `SpecError` if the file changed meanwhile, and `StoreUnavailable`.
    """
    if use.log.version(stream):
        with use.plans.holding(stream) as plan:
            if there := sorted(checkpoint_needs.weights_in_use(plan)):
                return there[0], False  # all are equal: their hash is in the plan's name
    key, digest = f"{use.store.prefix}{stream}/begin-{use.new_id()[:12]}", sha256()
    try:
        use.store.write(key, _hash_parts(source.parts(), digest))
    except Exception as error:  # each store's client has its own exceptions
        raise StoreUnavailable(f"{key} cannot be written: {type(error).__name__}: {error}") from error
    if digest.hexdigest() != source.sha256:
        use.store.delete(key)
        raise SpecError([Problem("begin_from", "must stay as it is: it was changed while it was copied")])
    return key, True


def _hash_parts(parts: Iterator[bytes] | Iterator[memoryview], digest: Any) -> Iterator[memoryview]:
    for part in parts:
        digest.update(part)
        yield memoryview(part)


def _file_source(use: Services, begin: BeginFrom, file: str) -> WeightSource:
    refuse = _check_path(use, "file", file)
    digest = sha256()
    try:
        with open_file(file) as opened:
            kind = kind_of(opened)
            opened.seek(0)
            size = os.fstat(opened.fileno()).st_size
        _check_size(refuse, file, size)
        for part in _parts_of(file, size):
            digest.update(part)
    except InputMissing as problem:
        raise refuse(f"must be a file that can be read: {problem}") from None
    except OSError as error:
        raise refuse(f"must be a file that can be read: {file}: {error.strerror or error}") from None
    if kind is None:
        raise refuse(f"must be safetensors, a file of torch.save, or a checkpoint of stagetree, and {file} is neither")
    if begin.state and kind != "checkpoint":
        raise refuse(f"must be a checkpoint of stagetree for state: true, and {file} has weights alone")
    if kind == "dcp":
        raise refuse(f"must be weights, and {file} is an object of a store")
    origin = {"file": file, "state": begin.state, **_step_field(begin)}
    return WeightSource(origin, digest.hexdigest(), size, lambda: _parts_of(file, size))


def _folder_source(use: Services, begin: BeginFrom, folder: str) -> WeightSource:
    """A folder of torch.distributed.checkpoint. Only the trainer, which has torch, can check its content."""
    refuse, digest = _check_path(use, "dcp", folder), sha256()
    try:
        packed = PackedFolder.from_folder(Path(folder))
        _check_size(refuse, folder, packed.size)
        for part in packed.parts():
            digest.update(part)
    except NotDcp as problem:
        raise refuse(f"must be a folder that torch.distributed.checkpoint wrote, and {folder} {problem}") from None
    except OSError as error:
        raise refuse(f"must be a folder that can be read: {folder}: {error.strerror or error}") from None
    origin = {"dcp": folder, "state": False, **_step_field(begin)}
    return WeightSource(origin, digest.hexdigest(), packed.size, packed.parts)


def _step_field(begin: BeginFrom) -> Json:
    """The step of another program's file, if the user gave it."""
    return {} if begin.step is None else {"step": begin.step}


def _check_path(use: Services, field: str, path: str) -> Callable[[str], SpecError]:
    """A maker of refusals for this path. Raises `SpecError` if studies may not name it."""

    def refuse(problem: str) -> SpecError:
        return SpecError([Problem(f"begin_from.{field}", problem)])

    if not path.startswith("/"):
        raise refuse(f"must be an absolute path here, got {path}")
    [problem] = use.reader.read([ReadRequest.check_readable(path, use.study_files)])
    if isinstance(problem, InputForbidden):
        where = ", ".join(use.study_files) or "no folder"
        raise refuse(
            f"must be a file of the server that studies may name, and STAGETREE_STUDY_FILES there names {where}, got "
            f"{path}; or name a study and a trial of this server"
        )
    if isinstance(problem, InputUnread):
        raise refuse(f"must be a file that can be read: {problem}")
    return refuse


def _check_size(refuse: Callable[[str], SpecError], path: str, size: int) -> None:
    if size > MAX_WEIGHTS:
        raise refuse(f"must be at most {MAX_WEIGHTS / 2**40:.0f} TiB: {path} has {size:,} bytes")


def _parts_of(file: str, size: int) -> Iterator[bytes]:
    """The first bytes of a file, which may have grown meanwhile."""
    with open_file(file) as opened:
        while part := opened.read(min(PART, size)):
            yield part
            size -= len(part)


def _study_source(use: Services, begin: BeginFrom, who: Principal) -> WeightSource:
    trial = None if begin.trial in (None, "best") else int(begin.trial or 0)
    try:
        row = use.find(str(begin.study), who)
        with use.open_study(row) as (plan, study):
            state = kept_state(plan, study, trial, begin.step)
            is_divided = plan.opened is not None and plan.opened.parallel != "tree"
    except Unknown as problem:
        raise SpecError([Problem("begin_from", f"must be a state that is kept: {problem}")]) from None
    origin = {"study": row.id, "trial": state.trial, "step": state.step, "state": begin.state}
    checkpoint = state.checkpoint
    if not is_divided:
        return WeightSource(origin, checkpoint.sha256, checkpoint.size, lambda: use.store.read(checkpoint.key))
    join_ranks = partial(parts, use.store, checkpoint, whole=True)
    digest, size = sha256(), 0
    for part in join_ranks():
        digest.update(part)
        size += len(part)
    return WeightSource(origin, digest.hexdigest(), size, join_ranks)


def submit(
    use: Services,
    write: Write,
    spec: StudySpec,
    trainer: TrainerSource,
    who: Principal = ANONYMOUS_ADMIN,
    project: str | None = None,
) -> list[e.Event]:
    """Submit a study; the events of its submission and of the results that it learned. Raises what `write` raises.

    project: by default the principal's, or the unnamed one. Raises `HttpProblem` if the principal may not use it.
    """
    project = who.project or "" if project is None else project
    if not who.can_see(project):
        raise HttpProblem(403, f"{who.name} is of the project {who.project!r}, and not of {project!r}.")
    for number, sink in enumerate(spec.sinks):
        try:
            use.sinks.address(sink)
        except SinkError as error:
            raise SpecError([Problem(f"sinks[{number}]", str(error))]) from None
    spec = spec.fill_in(
        sampling_seed=int(sha256(use.new_id().encode()).hexdigest()[:8], 16)
    )  # recorded, so that replays sample alike
    source = None if spec.begin_from is None else find_source(use, spec.begin_from, who)
    inputs = inputs_seen(use, spec.inputs) if spec.inputs else []
    plan, study = opening_event(spec, trainer, source, inputs, project), _new_id(use, spec.name)
    stream = plan_name(plan)
    begin, is_new = None, True
    if source is not None:
        key, is_new = store_weights(use, stream, source)
        begin = {**source.origin, "key": key, "sha256": source.sha256, "size": source.size}
    command = c.SubmitStudy(
        plan=plan,
        study=study,
        spec=pin_version(spec.to_json()),
        at=use.clock(),
        begin=begin,
        inputs=inputs,
        other_files=changed_files(use, stream, inputs, spec.runtime_args),
        has_new_weights=is_new,
        by=who.name,
        learned=learn_results(use, spec, study, who),
    )
    recorded = write(stream, lambda plan: decide(plan, command, use.limits))
    return [each.event for each in recorded if isinstance(each.event, e.StudySubmitted | c.ResultsLearned)]


def plan_name(plan: e.PlanOpened) -> PlanId:
    """The id of the plan that this event opens. All parts of the id are in the event."""
    return plan_id(
        plan.trainer,
        plan.trainer_version,
        plan.trainer_args,
        plan.seed,
        plan.determinism,
        plan.packing,
        plan.begin,
        plan.inputs,
        plan.project,
        plan.shards,
        plan.parallel,
    )


def opening_event(
    spec: StudySpec,
    trainer: TrainerSource,
    source: WeightSource | None = None,
    inputs: Sequence[e.Json] = (),
    project: str = "",
) -> e.PlanOpened:
    """The event that opens the study's plan. source, inputs: the weights it begins from, and records of its inputs."""
    return e.PlanOpened(
        trainer=spec.trainer,
        trainer_version=trainer.version,
        trainer_args=dict(spec.trainer_args),
        seed=spec.seed,
        determinism=spec.determinism,
        packing=spec.lanes,
        begin=None if source is None else {"sha256": source.sha256, "state": source.origin["state"]},
        inputs=[fingerprint(each) for each in inputs],
        project=project,
        shards=spec.shards or 0,
        parallel=f"{LAUNCHED}:{spec.ranks}"
        if trainer.launched and spec.ranks != 1
        else reduction_name(spec.parallel, spec.shards, spec.ranks),
    )


def _new_id(use: Services, name: str) -> StudyId:
    """The name as a URL slug, with six random characters to make it unique."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain)[:56].strip("-") or "study"
    while True:
        study = f"{slug}-{use.new_id()[:6]}"
        with use.records.read() as rows:
            if rows.studies.find(study) is None:
                return StudyId(study)
