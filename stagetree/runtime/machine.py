"""The settings of a training process on its machine, made before CUDA starts: devices, threads, determinism, memory."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import platform
import signal
import sys
from dataclasses import dataclass
from typing import Any

import torch

from stagetree.packing.recordings import enable_recording
from stagetree.system.files import loaded_libraries
from stagetree.system.memory import available_bytes, keep_freed_memory, take_peak_bytes
from stagetree.system.processes import fields_of_processor

MOST_HELD, SMALL_BYTES, BYTES_OF_EMPTY = 251, 512, sys.getsizeof(b"")
"""The most objects of a size to hold; up to SMALL_BYTES Python allocates from memory of its own."""

BLAS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
"""Functions that set the threads of OpenBLAS, which NumPy ships; it reads the environment only once."""


@dataclass(frozen=True, slots=True)
class Machine:
    """device: as torch writes it, `cpu` or `cuda:0`. visible_devices: for CUDA_VISIBLE_DEVICES; None leaves it alone.

    threads: of the CPU. determinism: for the first model, see `set_determinism`. memory_fraction: the share of a GPU's
    memory that torch may use. cuda_graphs: record the passes of packs, see `stagetree.packing.recordings`.
    """

    device: str
    visible_devices: str | None
    threads: int
    determinism: str
    memory_fraction: float = 1.0
    cuda_graphs: bool = False

    def prepare(self) -> dict[str, Any]:
        """Apply the settings to this process and its children. Returns a description. RuntimeError: no such device."""
        if self.visible_devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.visible_devices
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(self.threads)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # only read when CUDA starts
        torch.set_num_threads(self.threads)
        for path in loaded_libraries("openblas"):
            library = ctypes.CDLL(path)
            for name in BLAS:
                if hasattr(library, name):
                    getattr(library, name)(self.threads)
        set_determinism(self.determinism)
        enable_recording(self.cuda_graphs)
        software = {"python": "{}.{}".format(*sys.version_info), "torch": torch.__version__}
        if self.device == "cpu":
            keep_freed_memory()
            return software | {"device_name": "cpu", "processor": processor()}
        return software | {"cuda": torch.version.cuda, "device_name": self._start_device()}

    def _start_device(self) -> str:
        """Start CUDA and run a small computation, so that a broken device gets no work."""
        if not torch.cuda.is_available():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
            raise RuntimeError(f"CUDA error: torch {torch.__version__} finds no GPU here (visible devices: {visible})")
        torch.cuda.set_device(self.device)
        if self.memory_fraction < 1:
            torch.cuda.set_per_process_memory_fraction(self.memory_fraction, self.device)
        (torch.ones(8, 8, device=self.device) @ torch.ones(8, 8, device=self.device)).sum().item()
        return torch.cuda.get_device_name(self.device)


def processor() -> str:
    """The processor's name, microarchitecture and vector instructions, which decide the kernels and their sums."""
    about = dict[str, str]()
    for name, value in fields_of_processor():
        about.setdefault(name, value)
    x86, arm = (
        {"model name": "", "cpu family": "family ", "model": "model "},
        {"CPU implementer": "of ", "CPU part": "part "},
    )
    words = [f"{word}{about[name]}" for name, word in (x86 | arm).items() if about.get(name)]
    return ", ".join([*(words or [platform.machine()]), torch.backends.cpu.get_cpu_capability()])


def set_determinism(mode: str) -> None:
    """`strict` makes an operation without a deterministic form an error, `warn` a warning; `off` allows all.

    torch's attention has deterministic backward passes under `strict` only.
    """
    torch.use_deterministic_algorithms(mode != "off", warn_only=mode == "warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs 5 %
    torch.backends.cudnn.benchmark = mode == "off"


def log_to_stderr() -> None:
    """Print and log without delay, and escape text that cannot be encoded."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def write_stacks_to(fd: int) -> None:
    """Write the stacks of all threads to a file on a crash and on SIGUSR1. The descriptor stays the caller's."""
    stacks = os.fdopen(os.dup(fd), "wb", buffering=0)
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)


def refuse_breakpoints() -> None:
    """Make `breakpoint()` explain how to debug, since this process has no terminal."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("breakpoint() has no terminal here: `stagetree debug STUDY TRIAL` trains a trial in yours")

    sys.breakpointhook = refuse


def spread_addresses() -> list[object]:
    """Allocate small objects, to hold as long as the process lives; their number of each size depends on the process
    id.

    Forks of one interpreter have equal objects at equal addresses. A trainer that depends on addresses, for example by
    the order of a set of modules, would agree in all comparisons and differ on the next machine. Arrays are too large
    for the memory that this shifts.
    """
    number = os.getpid()
    held: list[object] = [object() for _ in range(number % MOST_HELD)]
    held += [float(each) for each in range(number * 7 % MOST_HELD)]
    for size in range(48, SMALL_BYTES + 1, 16):
        held += [bytes(size - BYTES_OF_EMPTY) for _ in range(number * size % MOST_HELD)]
    return held


def free_bytes(device: str) -> int:
    """The free memory of a GPU, or of this machine and its container; 0 if unknown."""
    if device != "cpu":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_bytes()


def peak_bytes(device: str) -> int:
    """The peak of memory in use since the last call: torch's on a GPU; on a CPU, that of the process.

    0 if unknown.
    """
    if device != "cpu":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    return take_peak_bytes()


def collect(device: str) -> None:
    """Free unreferenced memory and reset the peak."""
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
    peak_bytes(device)


def print_to(fd: int) -> None:
    """Redirect this process's output to a file, and close the descriptor."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
