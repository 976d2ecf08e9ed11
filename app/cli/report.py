"""`stagetree report` and `film`: a study as a file to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import USAGE, fail
from app.cli.options import Server, Store, StudyId
from app.cli.service import open_study

FILMS = ("svg", "gif", "png")


def report(
    id: StudyId,
    into: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="The file to write; by default ID.html here.")
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Leave out paths, hosts, addresses and names of people.")
    ] = False,
    url: Annotated[
        str, typer.Option("--url", metavar="URL", help="Where it will be: also write the picture that links show.")
    ] = "",
    server: Server = None,
    dir: Store = None,
) -> None:
    """Write a study as one HTML file: the page with all its views, to look at without a server or a network.

    Previews of links to it show its title and result. With --url they also show a picture, which needs Pillow. It is
    written to the folder of the report, and must be published with it.

    \b
    Example:  stagetree report last --public --url https://example.org/study.html
    """
    with open_study(id, server, dir) as (service, name):
        beside = _picture_beside(url, name)
        picture = service.client.film(name, "png", public=public) if beside else b""
        text = service.client.report(name, public=public, url=url)
    path = into or Path(f"{name}.html")
    _write(path, text.encode())
    if beside:
        _write(path.parent / beside, picture)


def _picture_beside(url: str, study: str) -> str:
    """The name of the file; none without an address."""
    from app.service.html_report import picture_beside
    from app.service.services import InvalidField

    try:
        return picture_beside(url, study)[1] if url else ""
    except InvalidField as error:
        fail(f"--{error}", USAGE)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    print(path)


def film(
    id: StudyId,
    into: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="The .svg, .gif or .png to write; by default ID.svg here."),
    ] = None,
    server: Server = None,
    dir: Store = None,
) -> None:
    """Write a film of ten seconds of a study: its rung tree grows, with the work of the slots below.

    An SVG plays in a browser, and is sharp at any size. A GIF also plays in mails and chats, and a PNG is the end
    of the film as one picture; both need Pillow.

    \b
    Example:  stagetree film last --to film.gif
    """
    kind = "svg" if into is None else into.suffix.removeprefix(".").lower()
    if kind not in FILMS:
        fail(f"--to: a film is a .svg or a .gif, and its end a .png, got {into}", USAGE)
    with open_study(id, server, dir) as (service, name):
        content = service.client.film(name, kind)
    _write(into or Path(f"{name}.svg"), content)
