"""`stagetree open`: the page over a store that exists, without slots, Redis or a scheduler."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import USAGE, fail
from app.cli.options import DEFAULT_DIR, check_store, is_store

if TYPE_CHECKING:
    from uvicorn import Server

HOST, USUAL_PORT = "127.0.0.1", 8000
Folder = Annotated[
    Path | None,
    typer.Argument(metavar="FOLDER", help="The store, or the folder that it is in; by default .stagetree here."),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port", metavar="N", min=0, max=65535, help="The port to listen on; by default 8000, or any free one."
    ),
]
Browser = Annotated[bool, typer.Option("--browser", help="Open the page in this machine's browser, too.")]


def open(folder: Folder = None, port: Port = None, browser: Browser = False) -> None:
    """Show the studies of a folder in a browser, read only: nothing is started or trained.

    \b
    Example:  stagetree open
    """
    where = _store(folder)
    listening = _listen(port)
    url = f"http://{HOST}:{listening.getsockname()[1]}"
    server = _server(where)
    print(f"{_studies(where)} Look at them in a browser: {url}")
    print("Nothing is trained, and nothing can be changed there. Ctrl-C stops it.", flush=True)
    if browser:
        import webbrowser

        webbrowser.open(url)
    server.run(sockets=[listening])


def _store(option: Path | None) -> Path:
    """The folder of the store. Exits with a message if there is none."""
    if option is not None and not option.is_dir():
        what = "is no folder" if option.exists() else "no such folder"
        fail(f"{option}: {what}; name a store, as `run` and `up` make one, or the folder that it is in", USAGE)
    inside = (option or Path()) / DEFAULT_DIR
    folder = inside if option is None or (is_store(inside) and not is_store(option)) else option
    check_store(folder)
    return folder


def _listen(port: int | None) -> socket.socket:
    """A listening socket, so that the printed address is certainly this process's."""
    try:
        return socket.create_server((HOST, USUAL_PORT if port is None else port))
    except OSError as problem:
        if port is not None:
            fail(f"--port {port} cannot be used: {problem.strerror}; without --port any free port is taken", USAGE)
    return socket.create_server((HOST, 0))


def _server(folder: Path) -> Server:
    """The API server over the folder, read only."""
    import uvicorn

    from app.api.access import AccessPolicy
    from app.api.application import make_app
    from app.api.server import OPTIONS
    from app.api.services import ApiServices
    from app.cli.store import services_of
    from app.settings import settings

    policy = AccessPolicy(instead=f"`stagetree up --dir {folder}` serves the same studies so that they can be changed.")
    services: ApiServices = services_of(folder, ApiServices, settings().stop_seconds, policy=policy)
    return uvicorn.Server(uvicorn.Config(make_app(services), log_level="warning", access_log=False, **OPTIONS))


def _studies(folder: Path) -> str:
    """A sentence on the studies in the folder, and on a stack that works there."""
    from app.process.folder_lock import find_server, is_in_use

    if is_in_use(folder):
        page = f"whose page at {there.url}" if (there := find_server(folder)) else "whose page"
        return f"A stack is at work in {folder}, {page} can change things; this one shows its studies as they are."
    return f"The studies in {folder} are open."
