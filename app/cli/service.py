"""The server or store that a command talks to, and the study that an argument names."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from app.cli.errors import NOT_FOUND, UNREACHABLE, USAGE, fail
from app.cli.options import DEFAULT_DIR, is_store
from stagetree.text import FINAL

if TYPE_CHECKING:
    from app.cli.store import Store
    from stagetree.client import Client

Asked = TypeVar("Asked", bound="StudyReader", covariant=True)
Json = dict[str, Any]

LISTEN_SECONDS = 1.0
"""How long a connection on this machine may take."""

LAST = "last"
IDS_SHOWN = 5


class Documents:
    """A client whose methods answer with JSON documents."""

    def __init__(self, client: Client) -> None:
        self._client, self.url = client, client.url
        self.place = f"--server {client.url}"

    is_attended = True
    """Whether a process trains there."""

    def check_work(self) -> None:
        """A server that answers is at work."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *arguments, **options: document(method(*arguments, **options))


@dataclass(frozen=True)
class Service(Generic[Asked]):
    """The server or store that a command talks to."""

    client: Asked
    check: Callable[[], None]
    """Raises if the service has died, or if no stack works on the store."""

    folder: Path | None = None
    """The folder of an embedded stack."""

    place: str = ""
    """The option that leads another command there, such as `--dir FOLDER`."""

    external_url: str | None = None
    """The address for other machines, if the stack listens for them."""

    token: str | None = None
    """That of the stack's user, if other machines can reach it or all callers need one."""


if TYPE_CHECKING:
    StudyReader = Documents | Store
    AnyService = Service[StudyReader]


@contextmanager
def open_server(url: str | None) -> Iterator[Service[Documents]]:
    """The server at a URL, or else of the environment, of the lasting stack of `.stagetree`, or of this machine."""
    with _connect(server_url(url) or local_server_url(lasting=True)) as service:
        yield service


@contextmanager
def _connect(url: str | None) -> Iterator[Service[Documents]]:
    from stagetree.client import Client

    with Client(url) as client, explain_unreachable(is_named=url is not None):
        if url is None:
            _check_that_one_listens(client.url)
        documents = Documents(client)
        yield Service(documents, documents.check_work, place=documents.place)


def _check_that_one_listens(url: str) -> None:
    """Raise `Unreachable` at once if nothing listens there. The user did not name that server: there is one attempt."""
    from stagetree.client import Unreachable

    place = urlsplit(url)
    try:
        socket.create_connection((place.hostname or "", place.port or 0), LISTEN_SECONDS).close()
    except ConnectionRefusedError as error:
        raise Unreachable(url, error.strerror) from None
    except OSError:
        pass  # the client reports it


@contextmanager
def open_study_on_server(url: str | None, meant: str) -> Iterator[tuple[Service[Documents], str]]:
    """The server that can change a study, and the study's id: a named server, or the one of `.stagetree`.

    Exits with a message if no process serves `.stagetree`, since other servers have other studies.
    """
    from app.process.folder_lock import is_in_use

    named = server_url(url) or local_server_url()
    if named is None and is_store(DEFAULT_DIR) and not is_in_use(DEFAULT_DIR):
        fail(f"no process serves {DEFAULT_DIR}, and no --server is named: {_START_A_SERVER}", UNREACHABLE)
    with open_server(named) as service:
        yield service, study_id(service.client, meant)


@contextmanager
def open_service(url: str | None, folder: Path | None) -> Iterator[AnyService]:
    """What answers about studies: a named server, a named folder, the server of the environment, `.stagetree` here, or
    the server of this machine; the first of these that exists.
    """
    if url and folder:
        fail("--server and --dir name two places: give one of them", USAGE)
    named = None if folder else server_url(url)
    if named is None and (folder or is_store(DEFAULT_DIR)):
        from app.cli.store import Store

        with Store(folder or DEFAULT_DIR) as store:
            yield Service(store, store.check_work, place=store.place)
    else:
        with _connect(named) as service:
            yield service


@contextmanager
def open_study(meant: str, url: str | None, folder: Path | None) -> Iterator[tuple[AnyService, str]]:
    """The server or store with a study, and the study's id."""
    with open_service(url, folder) as service:
        yield service, study_id(service.client, meant)


def document(answer: Any) -> Any:
    """The JSON of an answer, or of each answer in a list."""
    if isinstance(answer, Iterator):
        return map(document, answer)
    if isinstance(answer, list):
        return [document(item) for item in answer]
    return answer.to_json() if hasattr(answer, "to_json") else answer


def server_url(option: str | None) -> str | None:
    """The URL of the option or the environment, with its scheme; None for an empty option."""
    url = os.environ.get("STAGETREE_URL") if option is None else option
    if url and "://" in url and not url.startswith(("http://", "https://")):
        fail(
            f"{'STAGETREE_URL' if option is None else '--server'}: must begin with http:// or https://, got {url}",
            USAGE,
        )
    return f"http://{url}" if url and "://" not in url else url or None


def local_server_url(*, lasting: bool = False) -> str | None:
    """The URL of the stack that works in `.stagetree`. lasting: only one that outlives its own study."""
    from app.process.folder_lock import find_server

    here = find_server(DEFAULT_DIR)
    return here.url if here is not None and (here.stays or not lasting) else None


_START_A_SERVER = (
    "`stagetree up --trainers FILE.py` starts a server here, and `stagetree run STUDY.yaml` trains without one"
)


@contextmanager
def explain_unreachable(*, is_named: bool) -> Iterator[None]:
    """Add advice to the error about an unreachable default server."""
    from app.process.folder_lock import is_in_use
    from stagetree.client import Unreachable

    try:
        yield
    except Unreachable as error:
        if is_named:
            raise
        if is_in_use(DEFAULT_DIR):
            there = f"A stack is at work in {DEFAULT_DIR}, and takes no studies yet, or only its own: try again later"
        elif is_store(DEFAULT_DIR):
            there = _START_A_SERVER
        else:
            there = f"There is no {DEFAULT_DIR} here either: `stagetree run STUDY.yaml` makes one"
        fail(f"{error}\n{there}", UNREACHABLE)


def study_id(client: StudyReader, meant: str) -> str:
    """The id of the study, by its id, the unique beginning of its id, its name, or `last`.

    Exits with a message if there is none or more than one.
    """
    if meant == LAST:
        newest = next(iter(client.studies(limit=1)), None)
        if newest is None:
            fail("there are no studies yet", NOT_FOUND)
        return str(newest["study"])
    listed = list(client.studies(limit=1000))
    if any(study["study"] == meant for study in listed):
        return meant
    named = [study["study"] for study in listed if study["name"] == meant]
    if named:
        if len(named) > 1:
            print(f"{named[0]} is the newest of {len(named)} studies named {meant}.", file=sys.stderr)
        return str(named[0])
    matches = [study["study"] for study in listed if study["study"].startswith(meant)]
    if len(matches) > 1:
        fail(f"{meant} could be {', '.join(matches[:IDS_SHOWN])}{' ...' if len(matches) > IDS_SHOWN else ''}", USAGE)
    if not matches:
        from stagetree.sequences import did_you_mean

        near = did_you_mean(meant, [study["study"] for study in listed])
        fail(f"there is no study {meant}{near}; `stagetree studies` lists those there are", NOT_FOUND)
    return str(matches[0])


def trial_number(client: StudyReader, study: str, number: int | None) -> int:
    """The given number, or else that of the best trial, or of the one with which the trainer failed its check.

    Exits with a message if there is none.
    """
    if number is not None:
        return number
    document = client.study(study, trials=False)
    if document["best"] is not None:
        return int(document["best"]["trial"])
    if (tried := document.get("failed_check")) is not None:
        return int(tried)
    yet = "" if document["state"] in FINAL else " yet"
    return fail(f"no trial of {study} has a result{yet}: give the number of one", NOT_FOUND)
