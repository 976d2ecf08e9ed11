"""`python -m stagetree` is the `stagetree` command, found as installed: this package needs nothing of the service."""

from __future__ import annotations

import os
import sys
from importlib.metadata import distribution


def main() -> None:
    """Run the command. `-m` puts the working folder first in the path, and a package `app` there must not hide ours."""
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]
    [command] = distribution("stagetree").entry_points.select(group="console_scripts", name="stagetree")
    command.load()()


if __name__ == "__main__":
    main()
