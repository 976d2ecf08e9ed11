"""`stagetree trial add`, `extend` and `stop`: trials of a user, beside the tuner."""

from __future__ import annotations

from typing import Any

from app.cli.options import Output, Server, StepsInAll, StudyId, TrialNumber, Values
from app.cli.output import Format, plural, print_json
from app.cli.service import open_study_on_server
from app.cli.study_files import changes_of


def add(id: StudyId, steps: StepsInAll, set: Values, server: Server = None, output: Output = Format.table) -> None:
    """Add a trial of your own to a study, beside the trials of its tuner.

    \b
    Example:  stagetree trial add last --set lr=0.1 --set bs=64 --steps 40
    """
    _ask({"hp": changes_of(set, "--set"), "steps": steps}, id, server, output)


def extend(
    id: StudyId, trial: TrialNumber, steps: StepsInAll, server: Server = None, output: Output = Format.table
) -> None:
    """Train a trial of your own longer, from its last step.

    \b
    Example:  stagetree trial extend last 12 --steps 80
    """
    _ask({"trial": trial, "steps": steps}, id, server, output)


def stop(id: StudyId, trial: TrialNumber, server: Server = None) -> None:
    """Cancel a trial; steps that others share are still trained.

    \b
    Example:  stagetree trial stop last 12
    """
    with open_study_on_server(server, id) as (service, study):
        service.client.cancel_trial(study, trial)
    print(f"trial {trial} of {study} is cancelled")


def _ask(request: dict[str, Any], id: str, server: str | None, output: Format) -> None:
    with open_study_on_server(server, id) as (service, study):
        (answer,) = service.client.ask_trials(study, [request])
    if output is Format.json:
        print_json(answer)
    else:
        print(f"trial {answer['trial']} of {study} will train for {plural(answer['steps'], 'step')}")
