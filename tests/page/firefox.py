"""Firefox, driven by its own WebDriver BiDi: Playwright drives only its own build of Firefox."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import websocket

PATIENCE = 180.0
LISTENS = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
TOLD = "log.entryAdded"


class Firefox:
    """One window, and the errors and warnings of its pages."""

    def __init__(self, socket: websocket.WebSocket) -> None:
        self.errors: list[str] = []
        self._socket = socket
        self._numbers = itertools.count()
        self.command("session.new", capabilities={})
        self.command("session.subscribe", events=[TOLD])
        self._window = self.command("browsingContext.getTree")["contexts"][0]["context"]

    def command(self, method: str, **params: Any) -> Any:
        """The browser's answer. Raises AssertionError if it refuses."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv())).get("id") != number:
            self._hear(answer)
        assert answer["type"] == "success", answer
        return answer["result"]

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("method") == TOLD and event["params"]["level"] in ("error", "warn"):
            self.errors.append(event["params"]["text"])

    def resize(self, width: int, height: int) -> None:
        self.command("browsingContext.setViewport", context=self._window, viewport={"width": width, "height": height})

    def open(self, url: str) -> None:
        self.command("browsingContext.navigate", context=self._window, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """A JSON value of the page; a promise is awaited."""
        answer = self.command(
            "script.evaluate",
            expression=f"Promise.resolve({expression}).then(JSON.stringify)",
            target={"context": self._window},
            awaitPromise=True,
        )
        assert answer["type"] == "success", answer
        return json.loads(answer["result"].get("value", "null"))

    def wait_for(self, expression: str) -> None:
        """Wait until the expression is true. Raises AssertionError with the text of the page after a timeout."""
        end = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"{expression} is not so: {self.evaluate('document.body.innerText')}"
            time.sleep(0.05)

    def picture(self) -> str:
        """The visible page, as PNG in base64."""
        return str(self.command("browsingContext.captureScreenshot", context=self._window)["data"])


@contextmanager
def firefox(binary: str, profile: Path) -> Iterator[Firefox]:
    """Start a headless Firefox with its own profile."""
    log = profile / "firefox.log"
    command = [binary, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    with log.open("w") as told, subprocess.Popen(command, stdout=told, stderr=told) as process:
        try:
            with closing(websocket.create_connection(_address(log), timeout=PATIENCE, suppress_origin=True)) as socket:
                yield Firefox(socket)
        finally:
            process.terminate()


def _address(log: Path) -> str:
    end = time.monotonic() + PATIENCE
    while not (listens := LISTENS.search(log.read_text())):
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return f"{listens[1]}/session"
