"""The inputs of studies, and undeclared inputs that their trainers read.

A record of an input is a JSON object with its `path` and, once a slot has seen it, `files`, `bytes`, a `stamp` of sizes
and times and, for small ones, the `sha256` of the content; or `missing`. `unread` is a sentence that says why no slot
could look at it yet. `app.undeclared_inputs` makes the records of paths that no study declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os.path import isabs, normpath
from pathlib import PurePath
from typing import Any

from app.domain.search_plan import SearchPlan, Study
from stagetree.source.undeclared_input import UndeclaredInput

Json = dict[str, Any]


def fingerprint(record: Mapping[str, Any]) -> Json:
    """The fingerprint of an input: its content, or else its sizes and times, or else its path."""
    if "sha256" in record:
        return {"sha256": record["sha256"]}
    if "stamp" in record:
        return {"stamp": record["stamp"]}
    return {"path": record["path"]}


def is_unseen(record: Mapping[str, Any]) -> bool:
    """Whether no slot has seen an input yet."""
    return "stamp" not in record and "missing" not in record


def undeclared_inputs(
    plan: SearchPlan, inputs: Iterable[Mapping[str, Any]], arguments: Mapping[str, Any]
) -> list[Json]:
    """The records of files that the plan's trainer reads and `inputs` does not declare, with their paths for a study.

    arguments: the study's `runtime_args`. Paths among them are not part of the plan, and differ between studies.
    """
    found = dict[str, Json]()
    for record in (record for test in plan.tests for record in test.files if "written" not in record):
        found.setdefault(record["path"], record)
    named = [PurePath(normpath(each["path"])) for each in inputs]
    moves = _relocations(plan, arguments) if found else []
    there = (record | {"path": _relocate(path, moves)} for path, record in found.items())
    return [each for each in there if not any(PurePath(each["path"]).is_relative_to(path) for path in named)]


def _relocations(plan: SearchPlan, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of texts in the arguments of another study and of this one, longest first."""
    given = (
        (each, arguments.get(name)) for study in plan.studies.values() for name, each in study.spec.runtime_args.items()
    )
    texts = {(old, new) for old, new in given if isinstance(old, str) and isinstance(new, str) and old != new}
    return sorted(texts, key=lambda each: (-len(each[0]), *each))


def _relocate(path: str, moves: Iterable[tuple[str, str]]) -> str:
    """Replace an old text by a new one in a path, if it is the path, a folder above it, or the end of either."""
    for old, new in ((normpath(old), normpath(new)) for old, new in moves):
        head, found, rest = f"{path}/".partition(f"{old}/" if isabs(old) else f"/{old}/")
        if found and not (head and isabs(old)):
            return normpath("/".join([new if isabs(new) else f"{head}/{new}", rest]))
    return path


def watched_files(plan: SearchPlan, study: Study) -> tuple[Mapping[str, Any], ...]:
    """The files that a slot looks at before it trains for a study.

    These are its inputs, undeclared inputs (`found`), and the files that the trainer wrote during its check (`written`:
    whether in training).
    """
    written = [record for test in plan.tests for record in test.files if "written" in record]
    return (*study.inputs, *undeclared_inputs(plan, study.inputs, study.spec.runtime_args), *written)


RETRAINING = "any change of the trainer's file, or of the `version` that it sets, trains all anew"


def changed_text(path: str) -> str:
    """A sentence that an input has changed, so shared results may belong to its earlier version.

    path: as in `stagetree.source.undeclared_input`.
    """
    undeclared = UndeclaredInput(path)
    if undeclared.is_package:
        package = f"{undeclared.name} {undeclared.version}"
        return f"shared results were trained with {package}, and there is another now: {RETRAINING}"
    named, new = "it in `inputs`", "the new one"
    if undeclared.is_pattern:
        named, new = f"{undeclared.folder} in `inputs`", "the present files"
    if undeclared.is_variable:
        named = "it in `trainer_args`"
    return f"{path} has changed since shared results were trained: name {named} to train with {new}"


def input_warnings(plan: SearchPlan, study: Study) -> Iterator[str]:
    """Warnings that results of a study may belong to different inputs, in sentences."""
    for path in study.other_files:
        yield changed_text(path)
    if unread := [record["unread"] for record in study.inputs if "unread" in record]:
        yield f"its inputs are unchecked: {unread[0]}{f' (and {len(unread) - 1} more)' if unread[1:] else ''}"
    elif any(map(is_unseen, study.inputs)):
        yield "its inputs are unchecked: the server does not see them, and no slot has trained for it yet"
    for path in study.other_inputs:
        yield f"{path} was not the same on all slots, or at all times"
    for other in plan.studies.values() if study.inputs else ():  # most studies have no inputs
        if other.id != study.id:
            for mine, theirs in zip(study.inputs, other.inputs, strict=False):
                if not is_unseen(mine) and not is_unseen(theirs) and fingerprint(mine) != fingerprint(theirs):
                    yield f"{mine['path']} was another file when study {other.id} read it, and the two share training"
