"""`stagetree study`: a study and its result."""

from __future__ import annotations

from app.cli.options import Output, Server, Store, StudyId
from app.cli.output import Format
from app.cli.service import open_study
from app.cli.watch import headline, print_study


def study(id: StudyId, server: Server = None, dir: Store = None, output: Output = Format.table) -> None:
    """Show a study: its progress, its best trials, its cost, and failed trials.

    \b
    Example:  stagetree study last
    """
    with open_study(id, server, dir) as (service, name):
        document = service.client.study(name)
        if output is Format.table:
            print(headline(document), end="\n\n")
        print_study(service, document, output, is_strict=False)
