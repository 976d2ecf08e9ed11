"""The embedded stack of a program: `stagetree.local` starts this process, which ends when its stdin is closed.

It prints one line of JSON: the API's address and the number of slots, or why it could not start.
"""

from __future__ import annotations

import json
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from app.cli.sinks import study_sinks
from app.embedded.machine import StackFailed, default_slots, private_files
from app.embedded.stack import Embedded, embedded
from app.registry import TrainerFileError
from app.settings import SettingsError, settings

_LOOK_SECONDS = 1.0


def main(options: dict[str, Any]) -> int:
    """Serve until the input ends. The exit code is 1 when the stack could not start, or one of its processes ended."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    folder = Path(options["folder"])
    try:
        per_gpu = settings().slots_per_gpu
        slots = options["slots"] or default_slots(per_gpu)
        with private_files():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "trainers").mkdir(exist_ok=True)
        stack = Embedded(folder, slots, options["trainers"], slots_per_gpu=per_gpu, stays=True)
        with embedded(stack, await_slots=True):
            _say(url=stack.url, slots=slots, token=stack.token)
            with study_sinks(stack.url, folder / "sinks", stack.environment().get("STAGETREE_SINKS", "")):
                while not select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
                    stack.check()
    except (OSError, SettingsError, StackFailed, TrainerFileError) as problem:
        _say(error=str(problem))
        return 1
    return 0


def _say(**said: Any) -> None:
    try:
        print(json.dumps(said), flush=True)
    except BrokenPipeError:
        sys.stderr.close()  # the parent has gone


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
