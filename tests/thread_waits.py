"""Threads of OpenBLAS and OpenMP that wait sleep instead of spinning, from before these libraries are loaded.

Small fits and small steps gave them work for a moment, and then they kept a core busy that other tests could use. How
many threads share a sum stays as it is, in the processes that tests start, too.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
