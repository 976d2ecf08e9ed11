"""A reader who follows a page of the guide: writes its files, and runs its commands in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from docs_pages import DOCS, Block, blocks

ADDRESS = "http://127.0.0.1:8000"
"""Where the pages say that the server is; here it is at a port that is free."""

PATIENCE = 600
"""Seconds, for what on a quiet machine takes a few."""


@dataclass
class Reader:
    """A reader who follows the pages."""

    folder: Path
    url: str = ADDRESS
    server: subprocess.Popen[str] | None = None

    def do(self, page: str) -> str:
        """What the commands of a page print, all of them in one shell up to each that starts a server."""
        said, script = "", ""
        for block in blocks(DOCS / page):
            if block.file:
                (self.folder / block.file).write_text(block.text)
            elif block.text.startswith("stagetree up"):
                said, script = said + self.run(script), ""
                self.start(block)
            elif block.language == "sh":
                script += block.text
        return said + self.run(script)

    def run(self, script: str) -> str:
        script = "set -euo pipefail\n" + script.replace(ADDRESS, self.url)
        found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE, **self.where())
        assert found.returncode == 0, f"{script}\n{found.stdout}\n{found.stderr}"
        return found.stdout

    def start(self, block: Block) -> None:
        """The command of the other terminal; returns when it says that it is up."""
        command = [*block.text.split(), "--port", "0"]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **self.where())
        assert self.server.stdout is not None
        said = self.server.stdout.readline()
        assert said.startswith("stagetree is up at http://127.0.0.1:")
        self.url = said.split()[4]

    def stop(self) -> None:
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            assert self.server.wait(PATIENCE) == 130
            assert self.server.stdout is not None
            self.server.stdout.close()

    def where(self) -> dict[str, object]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STAGETREE_")}
        server = (
            {"STAGETREE_URL": self.url} if self.server else {}
        )  # without it, `stagetree run` has a stack of its own
        return {"cwd": self.folder, "env": {**environment, **server, "PATH": path}}
