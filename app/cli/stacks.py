"""Which service a command talks to: a server that was named, or an embedded stack for as long as the command runs."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from app.cli.errors import USAGE, fail, said_if_interrupted
from app.cli.options import DEFAULT_DIR
from app.cli.sinks import study_sinks
from app.cli.study_lookup import Documents, explained, served_here, server_url, study_id, url_for_studies
from app.cli.study_lookup import reading as place_to_read
from app.embedded import Embedded, Interpreter, default_slots, embedded
from app.registry import Catalogue, TrainerSource, check_arguments, describe
from app.settings import settings
from stagetree.errors import ProblemError
from stagetree.sequences import did_you_mean

if TYPE_CHECKING:
    from app.cli.store import Store
    from stagetree.client import Client
    from stagetree.spec import StudySpec

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = Path()
ENTRY = "trainer.py"

Asked = TypeVar("Asked", bound="Documents | Store", covariant=True)


@dataclass(frozen=True)
class Service(Generic[Asked]):
    """What a command asks, and where that is, as an option says it.

    `check` raises if the service has died, or nobody is at work; `folder` is that of an embedded stack, and
    `external_url` where other machines reach it, if they do, with the `token` of its user.
    """

    client: Asked
    check: Callable[[], None]
    folder: Path | None = None
    place: str = ""
    external_url: str | None = None
    token: str | None = None


@contextmanager
def server(url: str | None) -> Iterator[Service[Documents]]:
    """The service at a URL, or else that of the environment, what stays up for `.stagetree`, or this machine."""
    from stagetree.client import Client

    named = server_url(url) or served_here(lasting=True)
    with Client(named) as client, explained(is_named=named is not None):
        documents = Documents(client)
        yield Service(documents, documents.check_work, place=documents.place)


@contextmanager
def server_of_study(url: str | None, meant: str) -> Iterator[tuple[Service[Documents], str]]:
    """The server that can change a study, and the id of the study that is meant there."""
    with server(url_for_studies(url)) as service:
        yield service, study_id(service.client, meant)


@contextmanager
def reading(url: str | None, folder: Path | None) -> Iterator[Service[Documents | Store]]:
    """Whoever can tell about studies: a server, or a store without one."""
    with place_to_read(url, folder) as store:
        yield Service(store, store.check_work, place=store.place)


@contextmanager
def reading_study(meant: str, url: str | None, folder: Path | None) -> Iterator[tuple[Service[Documents | Store], str]]:
    """Whoever can tell about studies, and the id of the one that is meant."""
    with reading(url, folder) as service:
        yield service, study_id(service.client, meant)


@dataclass(frozen=True)
class OwnStack:
    """The embedded stack that a command has for itself. folder: where it keeps what it makes; None for nowhere.

    forking: what its trainers are forked from, where that has begun. stays: until the user ends it.
    to_run: as of `Embedded`.
    """

    folder: Path | None
    slots: int
    slots_per_gpu: int
    trainers: Sequence[str]
    host: str = "127.0.0.1"
    port: int = 0
    forking: Interpreter | None = None
    stays: bool = False
    to_run: str = ""

    @classmethod
    def of(cls, folder: Path | None, slots: int | None, slots_per_gpu: int | None, trainers: Sequence[str]) -> OwnStack:
        """As it was asked for, or else as the settings and this machine have it. Raises `StackFailed`."""
        per_gpu = slots_per_gpu or settings().slots_per_gpu
        return cls(folder, slots or default_slots(per_gpu), per_gpu, trainers)


@contextmanager
def own_stack(
    own: OwnStack, *, await_slots: bool = False, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[Service[Documents]]:
    """An embedded stack. A temporary folder is removed when all went well or nothing began, and named when not.

    meanwhile: done while it starts.
    """
    folder = own.folder or Path(tempfile.mkdtemp(prefix="stagetree-"))
    began = False
    try:
        say = partial(print, file=sys.stderr)
        place = (own.port, own.host, own.slots_per_gpu)
        stack = Embedded(
            folder, own.slots, own.trainers, *place, say=say, forking=own.forking, stays=own.stays, to_run=own.to_run
        )
        starting = embedded(stack, await_slots=await_slots, meanwhile=meanwhile)
        with ended_in_order(), starting, _client(stack.url) as client:
            began = True
            with study_sinks(stack.url, stack.folder / "sinks", stack.environment().get("STAGETREE_SINKS", "")):
                documents, others = Documents(client), stack.external_url
                yield Service(documents, stack.check, stack.folder, external_url=others, token=stack.token)
    except BaseException as error:
        if began and not isinstance(error, ProblemError):  # what is refused was not trained
            again = "" if folder == DEFAULT_DIR else f" with --dir {folder}"
            print(f"What was trained is kept: the same command{again} resumes there.", file=sys.stderr)
        elif own.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        with nullcontext() if began else said_if_interrupted():
            raise
    if own.folder is None:
        shutil.rmtree(folder, ignore_errors=True)


def _client(url: str) -> Client:
    """Imported when the stack has started: it is slow to import."""
    from stagetree.client import Client

    return Client(url)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """`kill`, or a terminal that is closed, ends the block like an exception, so that nothing is left behind."""

    def end(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def trainer_files(paths: Sequence[str], folder: Path = HERE) -> list[str]:
    """The files to register: those given, the `trainer.py` of a folder, and the examples of this checkout.

    A file that nobody named is left out if it repeats a trainer's name. Raises `TrainerFileError`.
    """
    files = [_trainer_file(Path(each), folder) for each in paths]
    names = set(describe(files))
    for path in [folder / ENTRY, *sorted(EXAMPLES.glob(f"*/{ENTRY}"))]:
        if path.exists() and not names & (described := describe([str(path)])).keys():
            files.append(str(path))
            names |= described.keys()
    return files


def _trainer_file(path: Path, folder: Path) -> str:
    """What `--trainers` names: a file, or the folder that `trainer.py` is in."""
    if not path.exists():
        near = folder / path.name
        there = f"; did you mean {near}?" if near.exists() else f": {path.absolute()}"
        fail(f"--trainers {path}: there is no such file{there}", USAGE)
    return str(path / ENTRY if (path / ENTRY).is_file() else path)


def check_trainer(spec: StudySpec, files: Sequence[str], folder: Path) -> TrainerSource:
    """The trainer of a study, which takes its arguments. Ends with a sentence if no file has it; raises `SpecError`.

    folder: that of the study file; where a file in it has the trainer, that is said.
    """
    described = Catalogue(files).describe()
    source = described.get(spec.trainer) or _fail_without(spec.trainer, sorted(described), folder)
    check_arguments(spec, source)
    return source


MOST_LOOKED_THROUGH = 100
"""Files of a folder."""


def _fail_without(name: str, names: list[str], folder: Path) -> NoReturn:
    near = dict.fromkeys([*sorted(folder.glob("*.py")), *sorted(HERE.glob("*.py"))])
    beside = islice(near, MOST_LOOKED_THROUGH)
    if found := [str(path) for path in beside if name in Catalogue([str(path)]).describe()]:
        fail(f"trainer: {name!r} is in {', '.join(found)}: give --trainers {found[0]}", USAGE)
    register = f"register yours with --trainers FILE.py, or keep it in {ENTRY} beside the study file"
    if not names:
        fail(f"trainer: there are none here, so not {name!r}: {register}", USAGE)
    fail(f"trainer: must be one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}; {register}", USAGE)
