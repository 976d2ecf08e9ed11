"""The command line. Data goes to stdout, progress and errors to stderr.

A module is named by its command. Slow imports are inside functions, so that `--help` is quick. Exit codes are in
`app.cli.errors`.
"""

from __future__ import annotations

import gc
import sys

GARBAGE = 300_000
"""The garbage collector's threshold: imports make many objects and hardly any garbage."""


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
            gc.freeze()  # else Python traverses all objects at exit


__all__ = ["main"]
