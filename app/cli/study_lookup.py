"""Where a command looks, and which study is meant: by id, the unique beginning of an id, a name, or `last`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import NOT_FOUND, UNREACHABLE, USAGE, fail
from app.cli.options import DEFAULT_DIR, is_store

if TYPE_CHECKING:
    from app.cli.store import Store
    from stagetree.client import Client

Json = dict[str, Any]


class Documents:
    """What a client can do, with documents for answers."""

    def __init__(self, client: Client) -> None:
        self._client, self.url = client, client.url
        self.place = f"--server {client.url}"

    is_attended = True
    """Whether somebody is at work there: a server answers."""

    def check_work(self) -> None:
        """Whoever asks a server hears from itself what it lacks."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *arguments, **options: document(method(*arguments, **options))


def document(answer: Any) -> Any:
    """An answer as the JSON that it was; of several, each."""
    if isinstance(answer, Iterator):
        return map(document, answer)
    if isinstance(answer, list):
        return [document(item) for item in answer]
    return answer.to_json() if hasattr(answer, "to_json") else answer


LAST = "last"
SHOWN = 5


def server_url(option: str | None) -> str | None:
    """The server that an option or the environment names, with its scheme; an empty option means none."""
    url = os.environ.get("STAGETREE_URL") if option is None else option
    if url and "://" in url and not url.startswith(("http://", "https://")):
        fail(
            f"{'STAGETREE_URL' if option is None else '--server'}: must begin with http:// or https://, got {url}",
            USAGE,
        )
    return f"http://{url}" if url and "://" not in url else url or None


@contextmanager
def reading(server: str | None, folder: Path | None) -> Iterator[Documents | Store]:
    """A server that was named, a folder that was named, the server of the environment, `.stagetree` here, or the
    server of this machine: the first of these that there is.
    """
    if server and folder:
        fail("--server and --dir name two places: give one of them", USAGE)
    url = None if folder else server_url(server)
    if url is None and (folder or is_store(DEFAULT_DIR)):
        from app.cli.store import Store

        with Store(folder or DEFAULT_DIR) as store:
            yield store
    else:
        from stagetree.client import Client

        with Client(url) as client, explained(is_named=url is not None):
            yield Documents(client)


def url_for_studies(option: str | None) -> str | None:
    """The server of the studies that commands list here, to change them: one that is named, or that of `.stagetree`.

    None where there is no such folder. Ends with a message where no process serves it: others have other studies.
    """
    from app.embedded.folder_lock import is_in_use

    url = server_url(option) or served_here()
    if url is None and is_store(DEFAULT_DIR) and not is_in_use(DEFAULT_DIR):
        fail(f"no process serves {DEFAULT_DIR}, and no --server is named. {_CHANGED_BY_A_SERVER}", UNREACHABLE)
    return url


def served_here(*, lasting: bool = False) -> str | None:
    """Where the stack answers that is at work in `.stagetree` here. lasting: only one that outlives its own study."""
    from app.embedded.folder_lock import find_server

    here = find_server(DEFAULT_DIR)
    return here.url if here is not None and (here.stays or not lasting) else None


_CHANGED_BY_A_SERVER = (
    f"The studies in {DEFAULT_DIR} are changed by way of a server: start one here with "
    "`stagetree up --trainers FILE.py`"
)


@contextmanager
def explained(*, is_named: bool) -> Iterator[None]:
    """Say of a server that nobody named, and that is not there, what else could be done."""
    from app.embedded.folder_lock import is_in_use
    from stagetree.client import Unreachable

    try:
        yield
    except Unreachable as error:
        if is_named:
            raise
        if is_in_use(DEFAULT_DIR):
            there = f"A stack is at work in {DEFAULT_DIR}, and takes no studies yet, or only its own: try again later"
        elif is_store(DEFAULT_DIR):
            there = _CHANGED_BY_A_SERVER
        else:
            there = f"There is no {DEFAULT_DIR} here either: `stagetree run STUDY.yaml` makes one"
        fail(f"{error}\n{there}", UNREACHABLE)


def study_id(client: Documents | Store, meant: str) -> str:
    """The id of the study that is meant. Ends with a message where there is none, or where it could be several."""
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
        return _newest(named, meant)
    matches = [study["study"] for study in listed if study["study"].startswith(meant)]
    if len(matches) > 1:
        fail(f"{meant} could be {', '.join(matches[:SHOWN])}{' ...' if len(matches) > SHOWN else ''}", USAGE)
    if not matches:
        fail(_unknown(meant, listed), NOT_FOUND)
    return str(matches[0])


def trial_number(client: Documents | Store, study: str, number: int | None) -> int:
    """The number that was given, or else that of the best trial. Ends with a message where there is none."""
    if number is not None:
        return number
    best = client.study(study, trials=False)["best"]
    if best is None:
        fail(f"no trial of {study} has a result yet: give the number of one", NOT_FOUND)
    return int(best["trial"])


def _newest(ids: list[str], name: str) -> str:
    if len(ids) > 1:
        print(f"{ids[0]} is the newest of {len(ids)} studies named {name}.", file=sys.stderr)
    return ids[0]


def _unknown(meant: str, listed: list[Json]) -> str:
    from stagetree.sequences import did_you_mean

    names = [study["study"] for study in listed]
    return f"there is no study {meant}{did_you_mean(meant, names)}; `stagetree studies` lists those there are"
