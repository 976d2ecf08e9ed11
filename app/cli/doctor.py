"""Commands for the moment when something is wrong: `debug` a trial, `doctor` the machine."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from app.cli.errors import USAGE, fail
from app.cli.options import Server, Store, StudyId, Trainers, TrialNumber
from app.cli.output import number as written

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
    from app.cli import stacks
    from stagetree.runtime.debug import run_in_terminal

    with stacks.reading_study(id, server, dir) as (service, name):
        trial, plan = service.client.trial(name, number), service.client.plan(name)
        study = service.client.study(name, trials=True)
    spec, begins = study["spec"], study.get("begins")
    until = steps or _came_to(trial)
    work = _as_on_a_slot(plan, spec, trial["hp"], stacks.trainer_files(trainers or []), device)
    work = replace(work, begin=_file_of(begins), whole=begins["state"]) if begins else work
    print(f"Training trial {number} of {name} from the beginning to step {until} ...", file=sys.stderr)
    metrics = run_in_terminal(work, until)
    for metric, value in sorted(metrics.items()):
        print(f"{metric}  {'-' if value is None else written(value)}")


class StateOfTrial(NamedTuple):
    """The checkpoint of a trial after a step, in a file."""

    study: str
    trial: int
    step: int
    image: Path


def export_as_on_a_slot(
    state: StateOfTrial, folder: Path, trainers: Sequence[str], server: str | None, dir: Path | None
) -> bool:
    """Have the trainer of a trial write its model into an empty folder. Raises what the trainer's code raises.

    Returns whether it has an `export` of its own.
    """
    from app.cli import stacks
    from stagetree.runtime.debug import export_state

    with stacks.reading_study(state.study, server, dir) as (service, name):
        trial, plan = service.client.trial(name, state.trial), service.client.plan(name)
        spec = service.client.study(name, trials=True)["spec"]
    work = _as_on_a_slot(plan, spec, trial["hp"], stacks.trainer_files(trainers), "cpu")
    return export_state(work, state.image, state.step, folder)


def _as_on_a_slot(plan: Json, spec: Json, hp: Json, files: Sequence[str], device: str) -> DebugTrial:
    """What a slot is given to train a trial. Ends with a message where no file has the trainer."""
    from app.registry import Catalogue
    from app.settings import settings
    from stagetree.runtime.debug import DebugTrial

    source = Catalogue(files).find(plan["trainer"])
    if source is None:
        fail(f"trainer {plan['trainer']!r} is in no file here: name its file with --trainers FILE.py", USAGE)
    if source.version != plan["trainer_version"]:
        print(f"{source.path} has changed since the study was trained.", file=sys.stderr)
    return DebugTrial(
        file=source.path,
        name=plan["trainer"],
        args={**plan["trainer_args"], **spec.get("runtime_args", {})},
        seed=plan["seed"],
        hp=hp,
        device=device,
        threads=settings().threads if device == "cpu" else 1,
        determinism=spec.get("determinism", "strict"),
        shards=plan.get("shards") or spec.get("shards") or 0,
        parallel=plan.get("parallel", "tree"),
    )


def _file_of(begins: Json) -> str:
    """The file that a trial begins from, if it is here, and still what it was. Ends with a message where it is not."""
    from app import input_fingerprints

    if "file" not in begins:
        fail(f"the trial {begins['text']}, and only what begins from nothing or from a file can be debugged", USAGE)
    try:
        if input_fingerprints.hash_of(begins["file"]) != begins["sha256"]:
            fail(f"the trial {begins['text']}, and {begins['file']} has changed since", USAGE)
    except input_fingerprints.InputMissing as problem:
        fail(f"the trial {begins['text']}, and {problem}", USAGE)
    return str(begins["file"])


def _came_to(trial: Json) -> int:
    """The step in which the trial failed, or the last one it was asked for."""
    return trial["failure"]["step"] + 1 if "failure" in trial else int(trial["steps"])


MOST_AHEAD = 5.0
"""Seconds that two clocks may differ. Leases go by the database's; people compare times by all of them."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    ok: bool
    detail: str


def examine(server: str | None, store: Path) -> list[Finding]:
    """Everything that matters on this machine, and the server if one is named."""
    looks: list[tuple[str, Callable[[], str]]] = [
        ("python", _python),
        ("torch", _torch),
        ("torchvision", _torchvision),
        ("redis", _redis),
        ("sqlite", _sqlite),
        ("folder", _folder),
        ("store", lambda: _store(store)),
        ("trainers", _trainers),
    ]
    findings = [_look(subject, look) for subject, look in looks]
    if server:
        findings.append(_look("server", lambda: _server(server)))
        if findings[-1].ok:
            findings += [_look("clock", lambda: _clock(server)), _look("service", lambda: _service(server))]
    return findings


def _look(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, True, look())
    except Exception as error:
        return Finding(subject, False, " ".join(str(error).split()) or type(error).__name__)


def _python() -> str:
    return platform.python_version()


def _torch() -> str:
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{torch.__version__}, " + (", ".join(gpus) if gpus else "no GPU: slots use the CPU")


def _torchvision() -> str:
    from stagetree.vision import import_torchvision, lacks_operators

    version = str(import_torchvision().__version__)
    if not lacks_operators():
        return version
    return (
        f"{version}, a build for another torch: slots import it without its compiled operators, and a program of your "
        "own does by stagetree.vision.import_torchvision()"
    )


def _redis() -> str:
    from app.embedded import redis_server

    return redis_server()


def _sqlite() -> str:
    from app.events.database import SAFE_WAL, SQLITE

    slow = "" if SQLITE.sqlite_version_info >= SAFE_WAL else ", without a write-ahead log: pip install pysqlite3"
    return f"{SQLITE.sqlite_version}{slow}"


def _folder() -> str:
    with tempfile.NamedTemporaryFile() as probe:
        free = shutil.disk_usage(Path(probe.name).parent).free
    if free < 2**30:
        raise RuntimeError(f"only {free / 2**20:.0f} MiB free in {tempfile.gettempdir()}: use --dir on a larger disk")
    return f"{free / 2**30:.0f} GiB free in {tempfile.gettempdir()}"


def _store(folder: Path) -> str:
    """That of `run` and `up` in this folder."""
    if not folder.exists():
        return f"none here yet: {folder} will be made in {Path.cwd()}"
    closed = [path for path in (folder, *folder.iterdir()) if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        raise RuntimeError(f"{closed[0]} cannot be written by this user: give it to them with chown, or use --dir")
    return f"{folder}, {shutil.disk_usage(folder).free / 2**30:.0f} GiB free"


def _trainers() -> str:
    from app.cli.stacks import trainer_files
    from app.registry import describe

    return ", ".join(sorted(describe(trainer_files([])))) or "none registered"


def _server(url: str) -> str:
    from stagetree.client import Client

    with Client(url, retries=0) as client:
        client.health()
    return f"{url} answers"


def _clock(url: str) -> str:
    """This machine's beside the server's, which says its time to the second."""
    import httpx2

    before = time.time()
    date = httpx2.get(f"{url.rstrip('/')}/healthz").headers["date"]
    ahead = (before + time.time()) / 2 - parsedate_to_datetime(date).timestamp() - 0.5
    if abs(ahead) > MOST_AHEAD:
        where = "ahead of" if ahead > 0 else "behind"
        raise RuntimeError(f"this machine's is {abs(ahead):.0f} s {where} the server's: set both by NTP")
    return f"within {MOST_AHEAD:.0f} s of the server's"


def _service(url: str) -> str:
    """Its database, schema, broker, store, scheduler and slots."""
    from stagetree.client import Client

    with Client(url, retries=0) as client:
        client.ready()
    return "database, schema, broker, store, scheduler and slots are well"
