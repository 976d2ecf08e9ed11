"""What the user's code raises, told apart from what goes wrong with us, as text that any database takes.

Keeps what the service is set up with from trainers, and secrets of the environment from what errors say.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import TracebackType

from stagetree.trainer.program import ProgramKilled

SECRET = re.compile("pass|secret|token|key|credential", re.IGNORECASE)
PASSWORD = re.compile("://[^/@:]*:([^/@]{3,})@")
SHORTEST_SECRET = 8
"""Shorter values are words that texts are full of."""

SERVICE = "STAGETREE_"
STACK = f"{SERVICE}STACK"
"""The folder of the stack below which a process began: the next one ends what is left of it."""

KEPT: tuple[str, ...] = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "TZ",
    "LANG",
    "LC_*",
    "XDG_*",
    "LD_*",
    "PYTHON*",
)
KEPT += (
    "CUDA_*",
    "NVIDIA_*",
    "NCCL_*",
    "GLOO_*",
    "ROCM_*",
    "HIP_*",
    "TORCH*",
    "PYTORCH_*",
    "CUBLAS_*",
    "OMP_*",
    "MKL_*",
)
"""What every trainer gets, besides what the operator lists: variables of the machine and of libraries."""

SAME_ORDER = {"PYTHONHASHSEED": "0"}
"""For the environment of processes that train: a set of strings then has the same order in all, on every machine.

Forks of one interpreter agree anyway, so no comparison would notice; the next stack would resume with another order."""


def keep_for_trainers(environment: MutableMapping[str, str]) -> None:
    """Take out what is not for trainers: what the service itself is set up with, such as the database's password.

    `STAGETREE_TRAINER_ENV` lists, separated by commas, what trainers get besides `KEPT`; all if it is not set.
    """
    allowed = [*KEPT, *environment.get(f"{SERVICE}TRAINER_ENV", "*").replace(" ", "").split(",")]
    for name in list(environment):
        if name != STACK and (name.startswith(SERVICE) or not any(fnmatchcase(name, pattern) for pattern in allowed)):
            del environment[name]


def masked(text: str, environment: Mapping[str, str]) -> str:
    """The text without the values of variables that sound secret, and without passwords in URLs among them.

    What an error says is shown to all who may look at the study.
    """
    secrets = {value for name, value in environment.items() if SECRET.search(name) and len(value) >= SHORTEST_SECRET}
    secrets |= {password for value in environment.values() for password in PASSWORD.findall(value)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
IMPORTING = ("<frozen importlib", importlib.__file__)
LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
LONGEST = 100_000
"""A longer text of an error loses its middle."""

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""Of torch's RuntimeError where the machine's memory is out; that of a device has a class."""

DEVICE_ERRORS = ("CUDA error", "CUBLAS_STATUS_", "CUDNN_STATUS_", "cuDNN error", "HIP error")
"""How the messages of a device that no longer works begin, where torch has no class for them."""

PEER_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")
"""Classes of torch for what another process of the same trial no longer answers."""

PEER_SIGNS = ("closed by peer", "reset by peer", "Read error", "Write error", "Broken pipe", "Timed out waiting")
"""In the messages of gloo, for which it has no class."""


UNSAVABLE = "unsavable"
"""The signature of a failure where the trainer's state holds something that cannot be saved."""


class TrainerFailed(Exception):
    """A trainer cannot go on.

    kind: `exception`, `out_of_memory` or `device` out of its code; `hang` or `crash` of its process; `rank` if another
    process of the same trial is gone, or can no longer be reached; `internal` is our own fault. error: a text for its
    user. step: how many steps it has been trained for. signature: equal for equal errors, in whatever process on
    whatever machine. may_divide: where it is out of memory, whether each of more ranks may need less.
    """

    def __init__(self, kind: str, error: str, step: int = 0, signature: str = "", *, may_divide: bool = False) -> None:
        super().__init__(error)
        self.kind, self.error, self.step, self.signature = kind, error, step, signature or kind
        self.may_divide = may_divide

    @property
    def is_final(self) -> bool:
        """Whether the same would happen in any other process, so that another try is of no use."""
        return self.signature == UNSAVABLE

    @classmethod
    def of(cls, error: BaseException) -> TrainerFailed:
        """What the user's code raised."""
        return cls(kind_of(error), text_of(error), signature=signature_of(error))


@contextmanager
def user_code(but: tuple[type[Exception], ...] | type[Exception] = ()) -> Iterator[None]:
    """An error of the user's code in the block is raised as a `TrainerFailed`. but: classes that pass as they are.

    So does a failure that is one already, which another process of the same trial has told of.
    """
    try:
        yield
    except TrainerFailed:
        raise
    except but:
        raise
    except BaseException as error:
        raise TrainerFailed.of(error) from error


def kind_of(error: BaseException) -> str:
    """`out_of_memory`, `rank`, `crash`, `device` or `exception`: what an error is, or was before it was wrapped."""
    chain = list(_chain(error))
    if any(isinstance(each, (MemoryError, *_of_torch("OutOfMemoryError"))) or NO_MEMORY in str(each) for each in chain):
        return "out_of_memory"
    if any(map(_is_of_peer, chain)):
        return "rank"
    if any(isinstance(each, ProgramKilled) for each in chain):
        return "crash"
    return "device" if any(map(_is_of_device, chain)) else "exception"


def text_of(error: BaseException) -> str:
    """The traceback from the user's first line on. What we refuse before any of theirs is a sentence."""
    outside = _outside(error.__traceback__)
    if outside is None and not _is_refusal(error):
        outside = error.__traceback__  # a fault of ours
    return plain("".join(traceback.format_exception(type(error), error, outside)))


def signature_of(error: BaseException) -> str:
    """The type of an error and where it was raised: the innermost line that is no library's, without its folder.

    Not its message, which may hold an address or a time.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    users = [frame for frame in frames if not frame.filename.startswith((OURS, *LIBRARIES))]
    places = [f" in {frame.name}, {os.path.basename(frame.filename)}:{frame.lineno}" for frame in users or frames]
    return plain(type(error).__qualname__ + "".join(places[-1:]))


def ending(code: int | None) -> str:
    """How a process ended, by its exit code as Python gives it; what goes on after `the process`."""
    if code is None or code >= 0:
        return f"ended by itself, with exit code {code}"
    more = ": the machine may have run out of memory" if -code == signal.SIGKILL else ""
    return f"was ended by signal {-code} ({signal.Signals(-code).name}){more}"


def plain(text: str) -> str:
    """The same text, of bounded length, without secrets, with what a database may refuse written as escapes."""
    text = masked(text, os.environ)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 4]}\n[...]\n{text[-3 * LONGEST // 4 :]}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it came from."""
    ids = set[int]()
    each: BaseException | None = error
    while each is not None and id(each) not in ids:
        ids.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _of_torch(name: str) -> tuple[type[BaseException], ...]:
    """A class of torch, if it has it. Where torch is not imported, as in a slot's process, nothing is of that class."""
    error: type[BaseException] | None = getattr(sys.modules.get("torch"), name, None)
    return () if error is None else (error,)


def _is_refusal(error: BaseException) -> bool:
    """Whether an error that we have raised may be meant for the user: of a usual class, or of our own."""
    return isinstance(error, TypeError | ValueError | RuntimeError) or type(error).__module__.startswith("stagetree.")


def _is_of_device(error: BaseException) -> bool:
    if isinstance(error, _of_torch("AcceleratorError")):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in DEVICE_ERRORS)


def _is_of_peer(error: BaseException) -> bool:
    if type(error).__name__ in PEER_ERRORS:
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and "gloo" in text and any(sign in text for sign in PEER_SIGNS)


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without our own frames, and those of the import system, at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((OURS, *IMPORTING)):
        trace = trace.tb_next
    return trace
