"""A `sitecustomize` that hides parts that only Linux has: prctl, inotify, pidfds, memfds, procfs, peers of sockets."""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import signal
import socket

for module, names in {
    os: ("memfd_create", "pidfd_open", "eventfd", "sched_getaffinity"),
    signal: ("pidfd_send_signal",),
    socket: ("SO_PEERCRED",),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def is_hidden(path):
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc", "/sys"))


def hide_proc(call):
    def call_unless_hidden(path=".", *rest, **more):
        if is_hidden(path):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return call(path, *rest, **more)

    return call_unless_hidden


builtins.open = io.open = hide_proc(io.open)
os.listdir, os.readlink, os.scandir = hide_proc(os.listdir), hide_proc(os.readlink), hide_proc(os.scandir)
exists = os.path.exists
os.path.exists = lambda path: not is_hidden(path) and exists(path)


class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "inotify_init1", "inotify_add_watch"):
            raise AttributeError(name)
        return super().__getattr__(name)


ctypes.CDLL = Library
