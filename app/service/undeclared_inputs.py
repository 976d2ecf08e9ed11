"""The files that a study reads, as far as this server sees them: inputs and undeclared inputs.

A trainer's check reports the files it reads (docs/decisions/0133-files-that-were-read.md). They are not part of the
plan's id, so a study may share results of older files. It is warned then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.domain.inputs import undeclared_inputs
from app.input_fingerprints import InputForbidden, InputMissing, may_be_read
from app.input_reader import ReadRequest
from app.service.services import Services
from app.undeclared_inputs import has_changed, was_seen_on_this_machine
from stagetree.source.undeclared_input import UndeclaredInput
from stagetree.spec import Problem, SpecError

Json = dict[str, Any]


def inputs_seen(use: Services, paths: Sequence[str]) -> list[Json]:
    """Records of these paths. Workers read paths that this server may not. Raises `SpecError`."""
    problems = {path: f"must be an absolute path here, got {path}" for path in paths if not path.startswith("/")}
    here = [path for path in paths if path not in problems] if use.study_files else []
    seen = dict(zip(here, use.reader.read(ReadRequest.look(path, use.study_files) for path in here), strict=True))
    if not here or any(isinstance(record, InputForbidden) for record in seen.values()):
        seen = {path: {"path": path} for path in paths}
    for path, record in seen.items():
        if isinstance(record, InputMissing):
            problems[path] = f"must be a file or a folder that can be read: {record}"
    if problems:
        raise SpecError(
            [Problem(f"inputs[{number}]", problems[path]) for number, path in enumerate(paths) if path in problems]
        )
    return [seen[path] for path in paths]


def changed_files(use: Services, stream: str, inputs: Sequence[Json], arguments: Mapping[str, Any]) -> list[str]:
    """A plan's undeclared inputs that have changed since they were first seen.

    arguments: the study's `runtime_args`. Slots report changes of files that this server may not read.
    """
    if not use.log.version(stream):
        return []
    with use.plans.holding(stream) as plan:
        seen_here = list(filter(was_seen_on_this_machine, undeclared_inputs(plan, inputs, arguments)))
    return [_recorded_path(each) for each in _changed(use, seen_here)] if seen_here else []


def _changed(use: Services, records: Sequence[Json]) -> Iterator[Json]:
    """The records that differ, as far as this server may read."""
    files = [each for each in records if UndeclaredInput(each["path"]).is_file] if use.study_files else []
    requests = (ReadRequest.undeclared_changed(each, use.study_files) for each in files)
    changed = dict(zip((each["path"] for each in files), use.reader.read(requests), strict=True))
    for record in records:
        if UndeclaredInput(record["path"]).is_file:
            is_changed = changed.get(record["path"], False) is True  # otherwise on another machine, or no longer read
        else:
            is_changed = may_be_read(record["path"], use.study_files) and _has_changed(record)
        if is_changed:
            yield record


def _recorded_path(record: Mapping[str, Any]) -> str:
    """The recorded path; a package's also has its version."""
    undeclared = UndeclaredInput(record["path"])
    return UndeclaredInput.package(undeclared.name, record["stamp"]).path if undeclared.is_package else undeclared.path


def _has_changed(record: Mapping[str, Any]) -> bool:
    """Whether a variable or a package has changed."""
    try:
        return has_changed(record)
    except InputMissing:
        return False
