"""Files of a study, and the page's files: checkpoints and weights, logged rows, and the page's build."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from app.domain import checkpoint_needs, results
from app.domain.search_plan import Checkpoint, SearchPlan, Study, get_trial
from app.domain.terms import TrialState, Unknown
from app.events import StudyRecord
from app.outages import store_is_unavailable
from app.service.services import Services
from app.service.trial_logs import logged_points
from app.service.views import outcomes
from app.storage.object_store import PART, ObjectStore, StoreUnavailable
from stagetree.atomic_file import atomic_file
from stagetree.models.pages import Logged
from stagetree.runtime.checkpoints.weight_files import find_model_copies, is_divided, join_parts, weight_parts


@dataclass(frozen=True, slots=True)
class KeptState:
    """A trial's stored state after `step` steps, with its metrics. A trial with repeats gives its first one."""

    trial: int
    step: int
    checkpoint: Checkpoint
    metrics: dict[str, float | None]
    has_failed: bool
    repeats: int = 1
    """The number of repeats whose states differ at this step."""

    means: Mapping[str, float | None] = field(default_factory=dict)
    """The mean metrics of all repeats, if all are measured."""

    exactness: str = ""
    """The trial's mark, if it has one."""

    @property
    def text(self) -> str:
        """The trial, the step, and the metrics of `evaluate`, as text."""
        pairs = _pairs(self.metrics)
        measured = f"its evaluate measured {pairs}" if pairs else "not measured there"
        if self.repeats > 1 and self.means:
            measured += f"; the trial's result there is the mean of all {self.repeats}: {_pairs(self.means)}"
        which = f", the first of its {self.repeats} repeats" if self.repeats > 1 else ""
        which += ", which failed later" if self.has_failed else ""
        return f"trial {self.trial}{which}{',' if which else ''} after step {self.step}: {measured}"

    def file_name(self, *, whole: bool) -> str:
        """The file's name after the study's name; `whole` for the checkpoint instead of the weights."""
        return f"trial-{self.trial}-step-{self.step}{'-state' if whole else ''}.safetensors"


def _pairs(metrics: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(metrics.items()))


_HOW_BEST_STATES_ARE_KEPT = "; keep_every in the study file has states kept at evaluations on the way"


def kept_state(plan: SearchPlan, study: Study, trial: int | None, step: int | None) -> KeptState:
    """The state of a trial after a step; by default the best trial, at the step of its value.

    Raises `Unknown`, which lists the stored steps.
    """
    if trial is None:
        winner = outcomes.best(plan, study)
        if winner is None:
            yet = ", so there are no best weights" if study.is_final else " yet"
            raise Unknown(f"no trial of {study.id} has a result{yet}; --trial N names one whose state is kept")
        trial = winner.trial
    of = get_trial(study, trial)
    if not (there := checkpoint_needs.states_of(plan, of)):
        raise Unknown(f"no state of trial {trial} is kept")
    how = _HOW_BEST_STATES_ARE_KEPT if step is None and study.spec.value == "best" else ""
    if step is None:
        result = results.result(plan, study, of)
        step = max(there) if result is None else result.step
    if step not in there:
        steps = ", ".join(map(str, there))
        raise Unknown(f"the state of trial {trial} after step {step} is not kept; the steps that are: {steps}{how}")
    metrics = dict(plan.nodes[there[step].node].metrics.get(step) or {})
    has_failed, repeats = of.state == TrialState.FAILED, len(plan.nodes_of(of, step))
    means, mark = plan.metrics(of, step) or {}, outcomes.marks(plan, study)(of)
    return KeptState(trial, step, there[step].checkpoint, metrics, has_failed, repeats, means, mark)


def parts(store: ObjectStore, checkpoint: Checkpoint, *, whole: bool, exactness: str = "") -> Iterator[memoryview]:
    """A safetensors file of the model's weights, with the trial's mark; or, if `whole`, the checkpoint as it is.

    Raises `Unknown` before the first part if the checkpoint is gone, damaged, or holds no tensors, and
    `StoreUnavailable`.
    """
    with _open_image(store, checkpoint) as image:
        for piece in _pieces(image, whole, exactness):
            for begin in range(0, len(piece), PART):
                yield piece[begin : begin + PART]


def _pieces(image: mmap.mmap, whole: bool, exactness: str) -> list[memoryview]:
    try:
        return [memoryview(image)] if whole else weight_parts(image, exactness)
    except ValueError as error:
        raise Unknown(str(error)) from None


class StateFile(NamedTuple):
    """A written state. like_the_model: parts with the model's names and shapes, which `evaluate` may use instead."""

    path: Path
    like_the_model: list[str]


def write_state(store: ObjectStore, study: str, state: KeptState, folder: Path, *, whole: bool) -> StateFile:
    """Write such a file into a folder. Raises as `parts`, before the file is begun, and OSError."""
    path = folder / f"{study}-{state.file_name(whole=whole)}"
    with _open_image(store, state.checkpoint) as image:
        pieces = _pieces(image, whole, state.exactness)
        with atomic_file(path) as file:
            for piece in pieces:
                file.write(piece)
        return StateFile(path, find_model_copies(image))


@contextmanager
def _open_image(store: ObjectStore, checkpoint: Checkpoint) -> Iterator[mmap.mmap]:
    """Map the checkpoint into memory, from its own file if it has one. A divided checkpoint is joined first."""
    images = [_object(store, each.key, each.sha256) for each in checkpoint.objects]
    yield _map_file(_copy_to_file(join_parts(images))) if is_divided(images[0]) else images[0]


def _object(store: ObjectStore, key: str, recorded: str) -> mmap.mmap:
    image, digest = _map_file(_descriptor(store, key)), sha256()
    for begin in range(0, len(image), PART):
        digest.update(memoryview(image)[begin : begin + PART])
    if digest.hexdigest() != recorded:
        raise Unknown(f"checkpoint {key} is damaged: its SHA-256 is not the one recorded")
    return image


def _map_file(fd: int) -> mmap.mmap:
    """Map a file and close its descriptor. The mapping ends with the last view of it."""
    try:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)


def _descriptor(store: ObjectStore, key: str) -> int:
    try:
        fd = store.open(key)
        return _copy_to_file(store.read(key)) if fd is None else fd
    except Exception as error:  # each store's client has its own exceptions
        if isinstance(error, FileNotFoundError) and not store_is_unavailable(error):
            raise Unknown(f"checkpoint {key} is not in the store any more: its file was deleted") from None
        text = f"checkpoint {key} cannot be read: {type(error).__name__}: {error}"
        raise StoreUnavailable(text) from error


def _copy_to_file(parts: Iterable[bytes | memoryview]) -> int:
    """Write the parts to an unnamed temporary file; its descriptor."""
    with tempfile.TemporaryFile() as file:
        for part in parts:
            file.write(part)
        file.flush()
        return os.dup(file.fileno())


BUILT = Path(__file__).parents[1] / "page" / "dist"
NEVER_BUILT = "It was never built: `make page` does it."


def index() -> Path | None:
    """The page's HTML; None if it was not built."""
    path = BUILT / "index.html"
    return path if path.is_file() else None


def asset(name: str) -> Path | None:
    """A script or a style sheet of the page; None if it does not exist."""
    path = BUILT / "assets" / name
    return path if path.is_file() else None


def missing_page_reason() -> str:
    """Why there is no page, by the build's own message."""
    problem = BUILT / "problem.txt"
    return problem.read_text(encoding="utf-8") if problem.is_file() else NEVER_BUILT


def trial_metrics(use: Services, row: StudyRecord, number: int) -> Logged:
    """The rows of a trial, in order of steps. Raises `Unknown` if the trial does not exist."""
    with use.open_study(row) as (plan, study):
        ends = list(plan.path_ends(next(get_trial(study, number).single_runs())))
    return Logged(items=[] if use.logs is None else list(logged_points(use.logs, row.stream, ends)))
