"""Keeps what the service is set up with from trainers, and secrets of the environment from what errors say."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from fnmatch import fnmatchcase

SECRET = re.compile("pass|secret|token|key|credential", re.IGNORECASE)
PASSWORD = re.compile("://[^/@:]*:([^/@]{3,})@")
SHORTEST_SECRET = 8
"""Shorter values are words that texts are full of."""

SERVICE = "STAGETREE_"
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
    "MKL_*",
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


def keep_for_trainers(environment: MutableMapping[str, str]) -> None:
    """Take out what is not for trainers: what the service itself is set up with, such as the database's password.

    `STAGETREE_TRAINER_ENV` lists, separated by commas, what trainers get besides `KEPT`; all if it is not set.
    """
    allowed = [*KEPT, *environment.get(f"{SERVICE}TRAINER_ENV", "*").replace(" ", "").split(",")]
    for name in list(environment):
        if name.startswith(SERVICE) or not any(fnmatchcase(name, pattern) for pattern in allowed):
            del environment[name]


def masked(text: str, environment: Mapping[str, str]) -> str:
    """The text without the values of variables that sound secret, and without passwords in URLs among them.

    What an error says is shown to all who may look at the study.
    """
    secrets = {value for name, value in environment.items() if SECRET.search(name) and len(value) >= SHORTEST_SECRET}
    secrets |= {found for value in environment.values() for found in PASSWORD.findall(value)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
