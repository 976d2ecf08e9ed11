"""Errors of the user's code, told apart from our own, as text that any database accepts.

Also keeps the service's settings from trainers, and secrets of the environment out of error texts.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, MutableMapping, Set
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from types import TracebackType

from stagetree.trainer.program import ProgramKilled

SECRET = re.compile("pass|secret|token|key|credential", re.IGNORECASE)
PASSWORD = re.compile("://[^/@:]*:([^/@]{3,})@")
MIN_SECRET_LENGTH = 8
"""Shorter values may be parts of ordinary words."""

MIN_SECRET_WORD = 6
"""Shorter values may be ordinary words, such as false."""

BETWEEN = r"""['"]?\s*[=:,]\s*[brf]?['"]?"""
"""What stands between a variable's name and its value where a text lists both."""

SERVICE = "STAGETREE_"
STACK = f"{SERVICE}STACK"
"""The variable with the folder of the stack that started a process. The next stack ends the processes left in it."""

PASSED_VARIABLES = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LC_*", "XDG_*", "LD_*", "PYTHON*"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "GLOO_*", "ROCM_*", "HIP_*", "TORCH*", "PYTORCH_*", "CUBLAS_*", "OMP_*", "MKL_*"),
)
"""Variables that every trainer gets: of the machine and of libraries."""

SAME_ORDER = {"PYTHONHASHSEED": "0"}
"""Variables of training processes: a set of strings has the same order in all of them, on every machine.

Forks of one interpreter agree anyway, so no comparison would notice; but the next stack would resume in another order.
"""


def keep_for_trainers(environment: MutableMapping[str, str]) -> None:
    """Remove the service's own variables, such as the database's password.

    `STAGETREE_TRAINER_ENV` is a comma-separated list of what trainers get besides `PASSED_VARIABLES`; by default
    everything.
    """
    allowed = [*PASSED_VARIABLES, *environment.get(f"{SERVICE}TRAINER_ENV", "*").replace(" ", "").split(",")]
    for name in list(environment):
        if name != STACK and (name.startswith(SERVICE) or not any(fnmatchcase(name, pattern) for pattern in allowed)):
            del environment[name]


def mask_secrets(text: str, environment: Mapping[str, str]) -> str:
    """Mask the values of variables with secret-sounding names, and passwords in URLs among the variables.

    Everybody with access to the study can read error texts. A long value is masked at any place, a shorter one where
    it stands as a word, and any value beside its name, as in `TOKEN=abc` and `{'TOKEN': 'abc'}`. A number that is not
    long is masked only there: it may be any other number.
    """
    named, passwords = _secrets(tuple(environment.items()))
    for name, value in named.items():
        if name in text and value in text:
            text = re.sub(rf"(?<!\w)({re.escape(name)}{BETWEEN}){re.escape(value)}(?!\w)", r"\1***", text)
    for secret in sorted({*named.values(), *passwords}, key=len, reverse=True):
        if secret in passwords or len(secret) >= MIN_SECRET_LENGTH:
            text = text.replace(secret, "***")
        elif len(secret) >= MIN_SECRET_WORD and not secret.isdecimal() and secret in text:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text


@lru_cache(maxsize=1)
def _secrets(variables: tuple[tuple[str, str], ...]) -> tuple[Mapping[str, str], Set[str]]:
    """The variables with secret-sounding names, and the passwords in URLs. Cached: each metric's name is masked."""
    named = {name: value for name, value in variables if SECRET.search(name) and value}
    return named, {password for _, value in variables for password in PASSWORD.findall(value)}


def _environment() -> Mapping[str, str]:
    """The variables, read as bytes: lookups of `os.environ` are recorded as the trainer's, one by one."""
    if not os.supports_bytes_environ:
        return os.environ
    return {os.fsdecode(name): os.fsdecode(value) for name, value in os.environb.items()}


OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
IMPORTING = ("<frozen importlib", importlib.__file__)
LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
MAX_LENGTH = 100_000
"""A longer error text loses its middle."""

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"
"""Part of torch's RuntimeError when host memory is exhausted. Device memory has an exception class."""

DEVICE_ERRORS = ("CUDA error", "CUBLAS_STATUS_", "CUDNN_STATUS_", "cuDNN error", "HIP error")
"""The beginnings of messages of a broken device for which torch has no class."""

PEER_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")
"""torch's exception classes for another process of the trial that no longer answers."""

PEER_SIGNS = ("closed by peer", "reset by peer", "Read error", "Write error", "Broken pipe", "Timed out waiting")
"""Parts of gloo's messages for the same, which has no class."""


UNSAVABLE = "unsavable"
"""The signature of a state that holds something that cannot be saved."""


class TrainerFailed(Exception):
    """A trainer cannot continue.

    kind: `exception`, `out_of_memory` or `device` for errors of its code; `hang` or `crash` of its process; `rank` if
    another process of the same trial is gone or unreachable; `internal` for our own errors. error: the text for the
    user. step: the number of steps trained. signature: equal for equal errors in any process on any machine.
    may_divide: if out of memory, whether more ranks would need less each.
    """

    def __init__(self, kind: str, error: str, step: int = 0, signature: str = "", *, may_divide: bool = False) -> None:
        super().__init__(error)
        self.kind, self.error, self.step, self.signature = kind, error, step, signature or kind
        self.may_divide = may_divide

    @property
    def is_final(self) -> bool:
        """Whether it would fail the same way in any other process, so that a retry is useless."""
        return self.signature == UNSAVABLE

    @classmethod
    def from_error(cls, error: BaseException) -> TrainerFailed:
        """An error of the user's code."""
        return cls(kind_of(error), format_error(error), signature=signature_of(error))


NO_GPU = re.compile("not compiled with CUDA enabled|No CUDA GPUs are available|Found no NVIDIA driver")
NO_GPU_ADVICE = "there is no GPU here; use the `device` that the trainer is given"
"""For code that names a GPU itself."""


@contextmanager
def user_code(but: tuple[type[Exception], ...] | type[Exception] = ()) -> Iterator[None]:
    """Raise errors of the user's code in the block as `TrainerFailed`.

    but: classes to pass through, as `TrainerFailed` itself is, which another process of the trial may have reported.
    """
    try:
        yield
    except TrainerFailed:
        raise
    except but:
        raise
    except BaseException as error:
        raise TrainerFailed.from_error(error) from error


def kind_of(error: BaseException) -> str:
    """`out_of_memory`, `rank`, `crash`, `device` or `exception`, by the error and its causes."""
    chain = list(_chain(error))
    if any(
        isinstance(each, (MemoryError, *_torch_error("OutOfMemoryError"))) or NO_MEMORY in str(each) for each in chain
    ):
        return "out_of_memory"
    if any(map(_is_of_peer, chain)):
        return "rank"
    if any(isinstance(each, ProgramKilled) for each in chain):
        return "crash"
    return "device" if any(map(_is_of_device, chain)) else "exception"


def format_error(error: BaseException) -> str:
    """The traceback from the user's first frame on. A refusal of ours has a message only."""
    outside = _outside(error.__traceback__)
    if outside is None and not _is_refusal(error):
        outside = error.__traceback__  # our own error
    text = plain("".join(traceback.format_exception(type(error), error, outside)))
    return f"{text.rstrip()}: {NO_GPU_ADVICE}\n" if NO_GPU.search(str(error)) else text


def signature_of(error: BaseException) -> str:
    """The type of an error, and the innermost line that is no library's, without the folder.

    The message is left out, since it may hold an address or a time.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    users = [frame for frame in frames if not frame.filename.startswith((OURS, *LIBRARIES))]
    places = [f" in {frame.name}, {os.path.basename(frame.filename)}:{frame.lineno}" for frame in users or frames]
    return plain(type(error).__qualname__ + "".join(places[-1:]))


def ending(code: int | None) -> str:
    """How a process ended, by its exit code as Python gives it; continues "the process"."""
    if code is None or code >= 0:
        return f"ended by itself, with exit code {code}"
    more = ": the machine may have run out of memory" if -code == signal.SIGKILL else ""
    return f"was ended by signal {-code} ({signal.Signals(-code).name}){more}"


def plain(text: str) -> str:
    """The text with secrets masked, its length bounded, and characters that databases refuse escaped."""
    text = mask_secrets(text, _environment())
    if len(text) > MAX_LENGTH:
        text = f"{text[: MAX_LENGTH // 4]}\n[...]\n{text[-3 * MAX_LENGTH // 4 :]}"
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes."""
    ids = set[int]()
    each: BaseException | None = error
    while each is not None and id(each) not in ids:
        ids.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _torch_error(name: str) -> tuple[type[BaseException], ...]:
    """A class of torch. Empty where torch is not imported, as in a slot's process."""
    error: type[BaseException] | None = getattr(sys.modules.get("torch"), name, None)
    return () if error is None else (error,)


def _is_refusal(error: BaseException) -> bool:
    """Whether an error of ours may be meant for the user: a common class, or one of our own."""
    return isinstance(error, TypeError | ValueError | RuntimeError) or type(error).__module__.startswith("stagetree.")


def _is_of_device(error: BaseException) -> bool:
    if isinstance(error, _torch_error("AcceleratorError")):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in DEVICE_ERRORS)


def _is_of_peer(error: BaseException) -> bool:
    if type(error).__name__ in PEER_ERRORS:
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and "gloo" in text and any(sign in text for sign in PEER_SIGNS)


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the leading frames of stagetree and of the import system."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((OURS, *IMPORTING)):
        trace = trace.tb_next
    return trace
