"""The warm interpreter: it has imported torch, and forks trainer processes in milliseconds.

    python -P -m stagetree.runtime.warm FD [LISTENING_FD] [TRAINER.py ... | told]

For what happens next see `stagetree.runtime.fork_server`. FD is a connected Unix socket; when its other side is closed,
the interpreter ends after the last of its forks. On the optional listening socket any number of clients may connect.
Some libraries that the trainers' files import are imported in advance, see `loading`. With `told`, the files come in
the first message, with the descriptor of a log.

No user code runs here, there is one thread, and CUDA is never started, so that forking is safe.
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
from stagetree.runtime.fork_server import ForkServer, exit_process, ignore_sigterm, restore_sigterm_in_forks
from stagetree.runtime.wire import Wire, pair
from stagetree.source.importing import cache_module_paths

MODULES = ("stagetree.runtime.child", "torch._inductor.config", "torch._dynamo", "torch.utils.data")
"""The trainer process, and modules that torch imports for determinism, for the first optimizer, and for data
loaders."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ONE_THREAD |= {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # Arrow, which pandas imports if it is installed
"""Variables that keep libraries from starting threads on import: a process that forks must have none."""

TOLD = "told"
"""Instead of the trainers' files: the owner will send them."""


def import_before_forking(files: Iterable[str] = ()) -> None:
    """Import what trainer processes need, before forking. Raises ImportError.

    files: of trainers, some of whose imports are made too; see `loading`.
    """
    os.environ |= ONE_THREAD
    gc.disable()  # imports make hardly any garbage, and collecting takes 0.2 s
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("stagetree.runtime.loading").import_for(files)  # by name: callers of `launch` need no torch
    cache_module_paths()
    gc.enable()
    gc.freeze()  # keeps objects shared with the forks


def launch(
    path: str = "", log: IO[bytes] | None = None, files: Iterable[str] = (), **how: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the interpreter, which takes requests at once. Returns the process, and the socket that keeps it alive.

    path: of a socket to listen on, or empty. log: for its output and that of trainers without a log; ours by default.
    files: of trainers, or `TOLD`. how: more arguments of `Popen`.
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
            start_new_session=True,  # keeps Ctrl-C away from it
            **how,
        )
    return process, ours


def main() -> int:
    ignore_sigterm()
    keep_for_trainers(os.environ)
    os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **ONE_THREAD}  # before torch imports NumPy
    fds = [int(each) for each in sys.argv[1:] if each.isdigit()]
    owner, *listeners = (socket.socket(fileno=fd) for fd in fds)
    warm = ForkServer(Wire(owner), *listeners)
    try:
        files = sys.argv[1 + len(fds) :]
        import_before_forking(warm.receive_files() if files == [TOLD] else files)
    except Exception as error:
        return warm.refuse(f"{type(error).__name__}: {error}")
    ours = frozenset(sys.modules)
    for each in list(getattr(weakref.finalize, "_registry", ())):
        each.atexit = False  # torch would delete its operators one by one
    wire = warm.serve()
    if wire is None:
        return exit_process(0, ours)
    restore_sigterm_in_forks()
    from stagetree.runtime.child import run

    return exit_process(run(wire), ours)


if __name__ == "__main__":
    sys.exit(main())
