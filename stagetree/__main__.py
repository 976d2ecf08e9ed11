"""`python -m stagetree` is the `stagetree` command, which is the service's. This package needs nothing of that."""

from __future__ import annotations

import os
import sys
from importlib import import_module

COMMAND = "app.cli"
"""As in the scripts of pyproject.toml. To look it up among the installed ones takes longer than to import it."""


def main() -> None:
    """Run the command. `-m` puts the working folder first in the path, and a package `app` there must not hide ours."""
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]
    import_module(COMMAND).main()


if __name__ == "__main__":
    main()
