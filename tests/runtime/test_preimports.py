"""Trainers' processes are forked from an interpreter that has imported what their files import, where that is sound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stagetree.runtime.loading import modules_for

TOP = '''"""A trainer."""

from __future__ import annotations

import math, scipy.stats
from sklearn.datasets import load_digits
from . import sibling
'''


def write_file(folder: Path, text: str, name: str = "trainer.py") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return str(folder / name)


def test_harmless_imports_of_a_file_are_preimported(tmp_path: Path) -> None:
    text = TOP + "import transformers, lightning.pytorch\n\ndef f():\n    import torchvision\n"
    assert modules_for([write_file(tmp_path, text)]) == ["scipy.stats", "sklearn.datasets", "torchvision"]
    assert modules_for([]) == []


def test_imports_of_its_modules_are_preimported(tmp_path: Path) -> None:
    write_file(tmp_path, "import pandas\n", "data.py")
    assert modules_for([write_file(tmp_path, "import data\n")]) == ["pandas"]


@pytest.mark.parametrize(
    "word",
    [
        "os.environ.get('DATA', '')",
        "path = os.environ['DATA'] if 'DATA' in os.environ else ''",
        "run({**os.environ, 'A': '1'}, dict(os.environ), os.environ.copy())  # its own environ",
        "from os import environ; environ['DATA']",
        "os.getenv('DATA'); make('an environment')",
    ],
)
def test_a_file_may_read_the_environment(tmp_path: Path, word: str) -> None:
    """Each process of a trainer that looked up where its data is imported scikit-learn anew, for a second."""
    text = f"import os, pandas\n\ndef f():\n    {word}\n"
    assert modules_for([write_file(tmp_path, text)]) == ["pandas"]


@pytest.mark.parametrize(
    "word",
    [
        "os.environ['SCIPY_ARRAY_API'] = '1'", "os.environ['A'] += '1'", "os.environ |= {'A': '1'}",
        "os.environ.setdefault('A', '1')", "del os.environ['A']", "values = os.environ", "update(os.environ)",
        "os.environb[b'A'] = b'1'", "from os import environ as values", "from os import putenv as put",
        "getattr(os, 'environ')['A'] = '1'", "os.putenv('A', '1')", "os.unsetenv('A')", "os.environ['A'], b = '1', 2",
        "[os.environ for _ in 'a']",
    ],
)  # fmt: skip
def test_nothing_is_preimported_if_a_file_may_change_the_environment(tmp_path: Path, word: str) -> None:
    harmless = write_file(tmp_path / "a", "import pandas\n")
    assert modules_for([harmless, write_file(tmp_path / "b", f"import os\n\ndef f():\n    {word}\n")]) == []


def test_a_module_of_the_users_own_is_not_mistaken_for_a_package(tmp_path: Path) -> None:
    write_file(tmp_path, "import os\n", "pandas.py")
    assert modules_for([write_file(tmp_path, "import pandas\nimport scipy\n")]) == ["scipy"]


def test_an_unreadable_file_is_left_to_its_loader(tmp_path: Path) -> None:
    broken = write_file(tmp_path / "a", "import (\n")
    assert modules_for([str(tmp_path / "none.py"), broken, write_file(tmp_path / "b", "import scipy\n")]) == ["scipy"]


@pytest.mark.slow
def test_torchvision_is_imported_beside_a_torch_without_its_operators(tmp_path: Path) -> None:
    """It failed there, and each process imported it again."""
    trainer = write_file(tmp_path, "import torchvision\n")
    code = f"import sys; from stagetree.runtime.loading import import_for; import_for([{trainer!r}])"
    whether = "; sys.exit('torchvision.transforms' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code + whether], check=False).returncode == 0
