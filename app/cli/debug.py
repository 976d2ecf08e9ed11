"""`stagetree debug`: a trial trained again in the terminal. `weights --export` builds its trainer in the same way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from app.cli.errors import USAGE, fail
from app.cli.extras import TRAINING, require
from app.cli.options import Server, Store, StudyId, Trainers, TrialNumber
from app.cli.output import number as written
from app.cli.service import open_study

if TYPE_CHECKING:
    from stagetree.runtime.debug import DebugTrial

Json = dict[str, Any]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="The device, cpu or cuda.")]


def debug(
    id: StudyId,
    number: TrialNumber,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", metavar="N", min=1, help="The step to train to; by default the one that failed, else the last."
        ),
    ] = None,
    trainers: Trainers = None,
    device: Device = "cpu",
    server: Server = None,
    dir: Store = None,
) -> None:
    """Train a trial again in this terminal, as a slot does: breakpoint() works. Records nothing.

    \b
    Example:  stagetree debug last 3 --steps 1
    """
    require(*TRAINING)
    from app.cli.trainer_files import trainer_files
    from stagetree.runtime.debug import run_in_terminal

    with open_study(id, server, dir) as (service, name):
        trial, plan = service.client.trial(name, number), service.client.plan(name)
        study = service.client.study(name, trials=True)
    spec, begins = study["spec"], study.get("begins")
    until = steps or (trial["failure"]["step"] + 1 if "failure" in trial else int(trial["steps"]))
    work = _slot_work(plan, spec, trial["hp"], trainer_files(trainers or []), device)
    work = replace(work, begin=_weights_file(begins), whole=begins["state"]) if begins else work
    print(f"Training trial {number} of {name} from the beginning to step {until} ...", file=sys.stderr)
    metrics = run_in_terminal(work, until)
    for metric, value in sorted(metrics.items()):
        print(f"{metric}  {'-' if value is None else written(value)}")


class StoredState(NamedTuple):
    """The checkpoint of a trial after a step, in a file. mark: of its trial, if any."""

    study: str
    trial: int
    step: int
    image: Path
    mark: str


def export_model(
    state: StoredState, folder: Path, trainers: Sequence[str], server: str | None, dir: Path | None
) -> bool:
    """Have a trial's trainer export its model into an empty folder. Raises what the trainer raises.

    Returns whether the trainer has its own `export`.
    """
    from app.cli.trainer_files import trainer_files
    from stagetree.runtime.debug import export_state

    with open_study(state.study, server, dir) as (service, name):
        trial, plan = service.client.trial(name, state.trial), service.client.plan(name)
        spec = service.client.study(name, trials=True)["spec"]
    work = _slot_work(plan, spec, trial["hp"], trainer_files(trainers), "cpu")
    return export_state(work, state.image, state.step, folder, state.mark)


def _slot_work(plan: Json, spec: Json, hp: Json, files: Sequence[str], device: str) -> DebugTrial:
    """The work of a slot that trains the trial. Exits with a message if no file has the trainer."""
    from app.domain.search_plan import StoredSpec
    from app.registry import Catalogue
    from app.settings import settings
    from stagetree.runtime.debug import DebugTrial

    source = Catalogue(files).find(plan["trainer"])
    if source is None:
        fail(f"trainer {plan['trainer']!r} is in no file here: name its file with --trainers FILE.py", USAGE)
    if source.version != plan["trainer_version"]:
        print(f"{source.path} has changed since the study was trained.", file=sys.stderr)
    stored = StoredSpec.from_json(spec)
    return DebugTrial(
        file=source.path,
        name=plan["trainer"],
        args={**plan["trainer_args"], **stored.runtime_args},
        seed=plan["seed"],
        hp=hp,
        device=device,
        threads=settings().threads if device == "cpu" else 1,
        determinism=stored.determinism,
        shards=plan.get("shards") or stored.shards,
        parallel=plan.get("parallel", "tree"),
    )


def _weights_file(begins: Json) -> str:
    """The unchanged file that a trial begins from. Exits with a message if it is missing or has changed."""
    from app import input_fingerprints

    if "file" not in begins:
        fail(f"the trial {begins['text']}, and only what begins from nothing or from a file can be debugged", USAGE)
    try:
        if input_fingerprints.hash_of(begins["file"]) != begins["sha256"]:
            fail(f"the trial {begins['text']}, and {begins['file']} has changed since", USAGE)
    except input_fingerprints.InputMissing as problem:
        fail(f"the trial {begins['text']}, and {problem}", USAGE)
    return str(begins["file"])
