"""The files that a study reads, as far as this server sees them: inputs and undeclared inputs.

A trainer's check reports the files it reads (docs/decisions/0133-files-that-were-read.md). They are not part of the
plan's id, so a study may share results of older files. It is warned then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.inputs import changed_text, undeclared_inputs
from app.input_fingerprints import InputMissing, look, may_be_read
from app.service.services import Services
from app.undeclared_inputs import has_changed, was_seen_on_this_machine
from stagetree.source.undeclared_input import UndeclaredInput
from stagetree.spec import Problem, SpecError, StudySpec

Json = dict[str, Any]


def inputs_seen(use: Services, paths: Sequence[str]) -> list[Json]:
    """Records of these paths. Workers read paths that this server may not. Raises `SpecError`."""
    inputs, problems = list[Json](), list[Problem]()
    is_ours = all(may_be_read(path, use.study_files) for path in paths)
    for number, path in enumerate(paths):
        try:
            if not path.startswith("/"):
                problems.append(Problem(f"inputs[{number}]", f"must be an absolute path here, got {path}"))
            else:
                inputs.append(look(path) if is_ours else {"path": path})
        except InputMissing as problem:
            problems.append(Problem(f"inputs[{number}]", f"must be a file or a folder that can be read: {problem}"))
    if problems:
        raise SpecError(problems)
    return inputs


def changed_files(use: Services, stream: str, inputs: Sequence[Json], arguments: Mapping[str, Any]) -> list[str]:
    """A plan's undeclared inputs that have changed since they were first seen.

    arguments: the study's `runtime_args`. Slots report changes of files that this server may not read.
    """
    if stream not in use.log.versions():
        return []
    with use.plans.holding(stream) as plan:
        records = undeclared_inputs(plan, inputs, arguments)
    ours = [each for each in records if may_be_read(each["path"], use.study_files) and was_seen_on_this_machine(each)]
    return [_recorded_path(each) for each in ours if _has_changed(each)]


def advice_on_files(use: Services, stream: str, spec: StudySpec) -> list[str]:
    """Advice before a submission. stream: the plan of the study without inputs and weights."""
    if spec.inputs or spec.begin_from:
        return []
    return [changed_text(path) for path in changed_files(use, stream, (), spec.runtime_args)]


def _recorded_path(record: Mapping[str, Any]) -> str:
    """The recorded path; a package's also has its version."""
    undeclared = UndeclaredInput(record["path"])
    return UndeclaredInput.package(undeclared.name, record["stamp"]).path if undeclared.is_package else undeclared.path


def _has_changed(record: Mapping[str, Any]) -> bool:
    try:
        return has_changed(record)
    except InputMissing:  # on another machine, or no longer read
        return False
