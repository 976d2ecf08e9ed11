"""A slot's process that starts a trainer with workers of its own, and then only waits: to be killed by a test."""

from __future__ import annotations

import sys

from moods import moody, train

from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

if __name__ == "__main__":
    process = moody(TrainerProcess.start(Warm()), workers=2, journal=sys.argv[1])
    print(process.pid, flush=True)
    train(process, 1, "hang_with_workers")
