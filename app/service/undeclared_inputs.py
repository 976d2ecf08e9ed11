"""The files that a study reads, as far as this server sees them: named inputs, and data files that were left out.

A trainer's check tells which files it reads (docs/decisions/0133-files-that-were-read.md). They are no part of the
plan's name, so a study may share results of older files: then it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.inputs import changed_text, left_out
from app.input_fingerprints import InputMissing, look, may_be_read
from app.service.services import Services
from app.undeclared_inputs import has_changed, is_of_here
from stagetree.spec import Problem, SpecError, StudySpec
from stagetree.undeclared_input import Unnamed

Json = dict[str, Any]


def inputs_seen(use: Services, paths: Sequence[str]) -> list[Json]:
    """Records of these paths. One that this server may not look at is left to the workers. Raises `SpecError`."""
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
    """What a plan's trainer reads and these inputs leave out, and had changed since it was seen first.

    arguments: the study's `runtime_args`. Of what this server may not look at, the slots say so.
    """
    if stream not in use.log.versions():
        return []
    with use.plans.holding(stream) as plan:
        records = left_out(plan, inputs, arguments)
    ours = [each for each in records if may_be_read(each["path"], use.study_files) and is_of_here(each)]
    return [_recorded_path(each) for each in ours if _has_changed(each)]


def advice_on_files(use: Services, stream: str, spec: StudySpec) -> list[str]:
    """Sentences on a study that is not submitted yet. stream: of its plan, if that has neither inputs nor weights."""
    if spec.inputs or spec.begin_from:
        return []
    return [changed_text(path) for path in changed_files(use, stream, (), spec.runtime_args)]


def _recorded_path(record: Mapping[str, Any]) -> str:
    """Its path; that of a package tells the version, too."""
    unnamed = Unnamed(record["path"])
    return Unnamed.package(unnamed.name, record["stamp"]).path if unnamed.is_package else unnamed.path


def _has_changed(record: Mapping[str, Any]) -> bool:
    try:
        return has_changed(record)
    except InputMissing:  # it is on another machine, or the trainer reads another path now
        return False
