"""An interpreter that has imported torch, and forks a process that trains for whoever asks: in milliseconds.

    python -P -m stagetree.runtime.warm FD [LISTENING_FD] [TRAINER.py ... | told]

FD is a connected Unix socket; when its other side is closed the interpreter ends, after the last of its forks. On a
second one that listens, any number of processes may connect. A request brings two file descriptors: the connection to
the trainer's process, and a lifeline. On the lifeline the interpreter says the process id and, in the end, how the
process ended. When the other end of the lifeline is closed or shut down, however that comes, the process and all that
it started are killed. Some libraries that the trainers' files name are imported beforehand, too: see `loading`. Who
does not know the files yet says `told`, and sends them, with the descriptor of a log, as the first message.

No user's code runs here, there is one thread, and CUDA is never started: so a fork is sound.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterable
from typing import IO, Any

from stagetree.runtime.failures import SAME_ORDER, keep_for_trainers
from stagetree.runtime.fork_server import ForkServer, end, end_forks_by_sigterm, leave_sigterm_to_the_worker
from stagetree.runtime.wire import Wire, pair
from stagetree.source.importing import know_modules

MODULES = ("stagetree.runtime.child", "torch._inductor.config", "torch._dynamo", "torch.utils.data")
"""The second and third are what torch imports when it is told to be deterministic, and for the first optimizer."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ONE_THREAD |= {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # of Arrow, which pandas imports where it is
"""The environment in which libraries start no threads when they are imported: a process that forks must have none."""

TOLD = "told"
"""In the place of the trainers' files: the owner sends them when it knows them."""


def import_before_forking(files: Iterable[str] = ()) -> None:
    """Import what a process that trains needs, so that none of the forks has to. Raises ImportError.

    files: those of trainers, of which some imports are made as well; see `loading`.
    """
    os.environ |= ONE_THREAD
    gc.disable()  # an import makes next to no garbage, and a look for it takes 0.2 s
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("stagetree.runtime.loading").import_for(files)  # it has torch: not for who launches us
    know_modules()
    gc.enable()
    gc.freeze()  # what is there now stays shared with the forks


def launch(
    path: str = "", log: IO[bytes] | None = None, files: Iterable[str] = (), **how: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the interpreter, which can be asked at once; the other end of the socket that keeps it alive.

    path: where it listens for others, if anywhere. log: what it, and a trainer without a log, print; else as we do.
    files: those of trainers, or `TOLD` alone. how: more of `Popen`.
    """
    ours, theirs = pair()
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        fds = [theirs.fileno()]
        if path:
            listener.bind(path)
            listener.listen()
            fds.append(listener.fileno())
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stagetree.runtime.warm", *map(str, fds), *files],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**SAME_ORDER, **os.environ, **how.pop("env", {})},
            start_new_session=True,  # Ctrl-C is not for it
            **how,
        )
    return process, ours


def main() -> int:
    leave_sigterm_to_the_worker()
    keep_for_trainers(os.environ)
    os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **ONE_THREAD}  # before torch imports NumPy
    fds = [int(each) for each in sys.argv[1:] if each.isdigit()]
    owner, *listeners = (socket.socket(fileno=fd) for fd in fds)
    warm = ForkServer(Wire(owner), *listeners)
    try:
        files = sys.argv[1 + len(fds) :]
        import_before_forking(warm.told() if files == [TOLD] else files)
    except Exception as error:
        return warm.refuse(f"{type(error).__name__}: {error}")
    ours = frozenset(sys.modules)
    for each in list(getattr(weakref.finalize, "_registry", ())):
        each.atexit = False  # torch would take each of its operators apart
    wire = warm.serve()
    if wire is None:
        return end(0, ours)
    end_forks_by_sigterm()
    from stagetree.runtime.child import run

    return end(run(wire), ours)


if __name__ == "__main__":
    sys.exit(main())
