"""Children of the embedded stack end, at any line where their parent was interrupted."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

from app.embedded.machine import kill


class Interrupted(subprocess.Popen[bytes]):
    """A child whose parent got a Ctrl-C while polling it: a caller that waits for its lock blocks for ever."""

    def wait(self, timeout: float | None = None) -> Any:
        raise AssertionError("this would wait for ever")


def test_a_child_ends_though_its_parent_was_interrupted_while_it_looked_at_it() -> None:
    child = Interrupted(["sleep", "600"], start_new_session=True)
    kill(child)
    assert child.returncode == -signal.SIGKILL


def test_a_child_that_has_ended_is_no_error() -> None:
    child = subprocess.Popen(["true"], start_new_session=True)
    child.wait()
    kill(child)
    assert child.returncode == 0
