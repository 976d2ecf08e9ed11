"""The programs, an environment of its own for each peer, and how long each program is to write."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import sysconfig
import tokenize
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PEERS = ROOT / ".peers"

REQUIRED = {
    "optuna": "optuna==5.0.0",
    "ray": "ray[tune]==2.60.0",
    "syne_tune": "syne-tune==0.16.0",
    "neps": "neural-pipeline-search==0.17.0",
}
"""The packages of each peer: the version with which its program was tried."""

OURS, STOPPING = "stagetree", "stagetree_stopping"
"""The second is the first with the rule of ASHA that stops, which most peers have: for that task alone."""

PROGRAMS = (OURS, STOPPING, *REQUIRED)
SOURCES = {
    OURS: [HERE / "trainer.py", *(HERE / "studies" / f"{name}.yaml" for name in ("ladder", "grid", "asha"))],
    **{name: [HERE / "programs" / f"with_{name}.py"] for name in REQUIRED},
}
"""The lines of a user for all three tasks with this tool, the model not counted."""


def python_of(program: str) -> str:
    """The interpreter that runs a program; makes its environment where there is none."""
    if program not in REQUIRED:
        return sys.executable
    folder = PEERS / program
    python = folder / "bin" / "python"
    installed = folder / "installed"
    if not installed.exists() or installed.read_text() != REQUIRED[program]:
        print(f"installing {REQUIRED[program]} in {folder.relative_to(ROOT)} ...", flush=True)
        install(python, folder, REQUIRED[program])
        installed.write_text(REQUIRED[program])
    return str(python)


def install(python: Path, folder: Path, required: str) -> None:
    """An environment with the peer. Packages that are here, torch above all, are seen there and not installed again."""
    venv.create(folder, with_pip=True, clear=True)
    purelib = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    Path(purelib.strip(), "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--ignore-installed", "--no-deps", required], check=True)
    subprocess.run([*pip, required], check=True)


def lines_of(program: str) -> int:
    """Lines to write for a program, without blank ones, comments and docstrings."""
    return sum(python_lines(path) if path.suffix == ".py" else yaml_lines(path) for path in SOURCES[program])


def yaml_lines(path: Path) -> int:
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in path.read_text().splitlines())


def python_lines(path: Path) -> int:
    text = path.read_text()
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for each in tokens if each.type not in silent for line in range(each.start[0], each.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)
