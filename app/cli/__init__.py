"""The command line: `stagetree run study.yaml` and its companions. Data on stdout, progress and errors on stderr.

Imports are made inside commands, so that `--help` is quick. Exit codes are in `app.cli.errors`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """The `stagetree` command."""
    from app.cli import output
    from app.cli.commands import app
    from app.cli.errors import explained

    output.prepare()
    with explained():
        try:
            app()
        finally:
            sys.stdout.flush()


__all__ = ["main"]
