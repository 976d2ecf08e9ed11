"""The command line: `stagetree run study.yaml` and its companions. Data on stdout, progress and errors on stderr.

Imports are made inside commands, so that `--help` is quick. Exit codes are in `app.cli.errors`.
"""

from __future__ import annotations

import gc
import sys

GARBAGE = 300_000
"""New objects before the collector looks for garbage among them: an import makes many, and next to no garbage."""


def main() -> None:
    """The `stagetree` command."""
    gc.set_threshold(GARBAGE)
    from app.cli import output
    from app.cli.commands import app
    from app.cli.errors import explain_errors

    output.prepare()
    with explain_errors():
        try:
            app()
        finally:
            sys.stdout.flush()
            gc.freeze()  # else Python looks through all of it before it ends


__all__ = ["main"]
