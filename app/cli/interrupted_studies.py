"""Studies of a folder that an earlier `stagetree run` left open: the same one is resumed, others are reported."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from app.cli.service import Documents, Service
from stagetree.text import FINAL

if TYPE_CHECKING:
    from stagetree.spec import StudySpec

Json = dict[str, Any]


def resume_interrupted(service: Service[Documents], spec: Json) -> str | None:
    """Resume the same study in an embedded stack, if an earlier run was interrupted; its id."""
    from stagetree.spec import StudySpec

    written = StudySpec(**spec)
    if service.folder is not None:
        for listed in service.client.studies(state=("running", "paused")):
            if not _is_the_same(written, service.client.study(listed["study"])):
                continue
            if _has_other_trainer(service, listed["study"]):
                _pause_interrupted(service, listed["study"], is_paused=listed["state"] == "paused")
            else:
                print(f"Resuming {listed['study']}, which was interrupted.", file=sys.stderr)
                _change_unless_over(service, "resume", listed["study"])
                return str(listed["study"])
    return None


def _change_unless_over(service: Service[Documents], verb: str, study: str) -> bool:
    """Resume or pause a study. False if it ended after it was listed: this folder's stack trains it all the while."""
    from stagetree.errors import Conflict

    try:
        getattr(service.client, verb)(study)
    except Conflict:
        if service.client.study(study)["state"] not in FINAL:
            raise
        return False
    return True


READ_SECONDS = 600.0
"""The time limit for comparing the files of an interrupted study: initial weights may have hundreds of gigabytes."""

NAMED = 3
"""The number of newest other studies that are named."""


def report_resumed_studies(service: Service[Documents], study: str | None = None) -> None:
    """Report the folder's other interrupted studies, which train again beside this one."""
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


LISTED = 100
"""The number of newest studies among which earlier ones of the same name are looked for."""


def report_changed_trainer(service: Service[Documents], study: str) -> None:
    """Report that the steps of earlier studies of this name are not reused, if the trainer's files are others now."""
    if service.folder is None:
        return
    listed = list(service.client.studies(limit=LISTED))  # newest first
    mine = next((each for each in listed if each["study"] == study), None)
    if mine is None:
        return
    earlier = [each for each in listed[listed.index(mine) + 1 :] if each["name"] == mine["name"]]
    if not earlier or any(each["plan"] == mine["plan"] for each in earlier):
        return
    before, now = service.client.plan(earlier[0]["study"]), service.client.plan(study)
    if before["trainer"] == now["trainer"] and before["trainer_version"] != now["trainer_version"]:
        known = ", ".join(each["study"] for each in earlier[:NAMED])
        print(
            f"The files of trainer {now['trainer']} have changed: what {known} trained is trained anew.",
            file=sys.stderr,
        )


def _is_the_same(written: StudySpec, document: Json) -> bool:
    """Whether a recorded study has the same spec and unchanged inputs."""
    from app.input_reader import InputReader, ReadRequest

    if not written.is_written_as(document["spec"]):
        return False
    begins = document.get("begins") or {}
    requests = [ReadRequest.content_changed(each) for each in document.get("inputs") or [] if "stamp" in each]
    if "file" in begins:
        requests.append(ReadRequest.file_changed(begins["file"], begins["sha256"]))
    with closing(InputReader(READ_SECONDS)) as reader:  # the submission reports what cannot be read
        return all(answer is False for answer in reader.read(requests))


def _has_other_trainer(service: Service[Documents], study: str) -> bool:
    """Whether the trainer's files have changed since the submission, so that no slot here has its version."""
    plan, versions = service.client.plan(study), {each["name"]: each["version"] for each in service.client.trainers()}
    return bool(versions.get(plan["trainer"], plan["trainer_version"]) != plan["trainer_version"])


def _pause_interrupted(service: Service[Documents], study: str, *, is_paused: bool) -> None:
    """Pause a study so that it does not wait for a slot, and report how to resume it."""
    if not (is_paused or _change_unless_over(service, "pause", study)):
        return
    print(
        f"{study} was interrupted and is paused: its trainer has changed since; with the files as they were, the same "
        "command resumes it.",
        file=sys.stderr,
    )
