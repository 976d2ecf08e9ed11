"""Reasons for which a result may differ in its last bits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stagetree.runtime.inexact_reasons import changes, operation_in
from stagetree.runtime.machine import processor


def test_a_difference_of_machines_is_described() -> None:
    there = {"torch": "2.12.0", "cuda": "12.6", "device_name": "A", "processor": "P", "threads": 2}
    assert changes(there, there) == []
    here = {"torch": "2.13.0", "cuda": "13.0", "device_name": "B", "processor": "Q", "threads": 4}
    assert changes(there, here) == [
        "resumed under another torch (2.13.0 after 2.12.0)",
        "resumed under another CUDA (13.0 after 12.6)",
        "resumed under another device (B after A)",
        "resumed under another processor (Q after P)",
        "resumed under another number of threads (4 after 2)",
    ]
    packages = {"python": "3.11", "packages": {"numpy": "2.1", "timm": "1.0", "gone": "1"}}
    assert changes(packages, {"python": "3.12", "packages": {"numpy": "2.1", "timm": "1.1", "new": "1"}}) == [
        "resumed under another Python (3.12 after 3.11)",
        "resumed under another timm (1.1 after 1.0)",
    ]


@pytest.mark.slow
def test_other_instructions_are_another_processor() -> None:
    """Kernels are chosen by them, and add in another order."""
    code = "from stagetree.runtime.machine import processor; print(processor())"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    here, plain = processor(), done.stdout.strip()
    assert here.partition(",")[0] == plain.partition(",")[0] and plain.endswith(", DEFAULT")
    assert changes({"processor": here}, {"processor": plain}) or here == plain


def test_missing_fields_of_an_older_checkpoint_are_no_difference() -> None:
    assert changes({}, {"torch": "2.13.0"}) == changes({"torch": "2.13.0"}, {"torch": "2.13.0", "threads": 1}) == []


def test_torch_names_the_operation() -> None:
    assert operation_in("put_ does not have a deterministic implementation, but you set it") == "put_"
    assert operation_in("Flash Attention uses a non-deterministic algorithm. To turn it off ...") != ""
    assert operation_in("x is deprecated") == ""
