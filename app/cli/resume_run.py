"""`stagetree run`, once more with the same file: it resumes the study that was interrupted.

Where its inputs or its trainer have changed since, that is another study.
"""

from __future__ import annotations

import sys

from app.cli.stacks import Service
from app.cli.study_lookup import Documents
from stagetree.client.http import Json
from stagetree.spec import StudySpec


def unfinished(service: Service[Documents], spec: Json) -> str | None:
    """In an embedded stack: the same study, if an earlier run in the folder was interrupted."""
    written = StudySpec.from_dict(spec, limits=None)
    if service.folder is not None:
        for listed in service.client.studies(state=("running", "paused")):
            if not _is_the_same(written, service.client.study(listed["study"])):
                continue
            if _is_of_another_version(service, listed["study"]):
                _set_aside(service, listed["study"], is_paused=listed["state"] == "paused")
            else:
                print(f"Resuming {listed['study']}, which was interrupted.", file=sys.stderr)
                service.client.resume(listed["study"])
                return str(listed["study"])
    return None


NAMED = 3
"""Of the other studies that slots train, the newest."""


def tell_others(service: Service[Documents], study: str | None = None) -> None:
    """Say which other studies of the folder were interrupted, and get slots again: they train beside this one."""
    running = [each["study"] for each in service.client.studies(state=("running",)) if each["study"] != study]
    if not running or service.folder is None:
        return
    more = f" and {len(running) - NAMED} more" if len(running) > NAMED else ""
    beside = f" beside {study}" if study else ""
    example = running[0] if len(running) == 1 else "ID"
    print(
        f"Interrupted before, and resumed{beside}: {', '.join(running[:NAMED])}{more}; `stagetree cancel {example}` in "
        f"another terminal ends a study, `stagetree pause {example}` keeps it for later.",
        file=sys.stderr,
    )


def _is_the_same(written: StudySpec, document: Json) -> bool:
    """Whether a study on record is written so, and what it reads has not changed since."""
    from app import input_fingerprints

    if not written.is_written_as(document["spec"]):
        return False
    begins = document.get("begins") or {}
    try:
        stamped = [each for each in document.get("inputs") or [] if "stamp" in each]
        is_other = "file" in begins and input_fingerprints.hash_of(begins["file"]) != begins["sha256"]
        return not is_other and not any(input_fingerprints.content_changed(each) for each in stamped)
    except input_fingerprints.InputMissing:  # which is said when it is submitted
        return False


def _is_of_another_version(service: Service[Documents], study: str) -> bool:
    """Whether its trainer's files have changed since it was submitted: no slot of this command has that version."""
    plan, versions = service.client.plan(study), {each["name"]: each["version"] for each in service.client.trainers()}
    return bool(versions.get(plan["trainer"], plan["trainer_version"]) != plan["trainer_version"])


def _set_aside(service: Service[Documents], study: str, *, is_paused: bool) -> None:
    """Pause it, so that it waits for no slot, and say what resumes it."""
    if not is_paused:
        service.client.pause(study)
    print(
        f"{study} was interrupted and is paused: its trainer has changed since; with the files as they were, the same "
        "command resumes it.",
        file=sys.stderr,
    )
