"""`python -m stagetree` is the `stagetree` command, found as installed: this package needs nothing of the service."""

from __future__ import annotations

import os
import sys
from importlib.metadata import distribution


def main() -> None:
    """Run the command, whatever else is called `app` in the working folder, which `-m` puts first."""
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
        del sys.path[0]
    [command] = distribution("stagetree").entry_points.select(group="console_scripts", name="stagetree")
    command.load()()


if __name__ == "__main__":
    main()
