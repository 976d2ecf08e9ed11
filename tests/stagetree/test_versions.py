"""A trainer's version is over the very bytes that are imported, helpers included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stagetree.source.importing import Imports
from stagetree.source.versions import SourceError, module_files, version_of

ROOT = Path(__file__).parents[2]


def write(folder: Path, **files: str) -> Path:
    """Files by name, with `__` for a slash; the path of trainer.py."""
    for name, text in files.items():
        path = folder / (name.replace("____init__", "/@").replace("__", "/").replace("@", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "trainer.py"


def run(code: str, **values: Any) -> Any:
    """What `found` is at the end, in a fresh interpreter."""
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    whole = f"import json, sys\n{given}{code}\nprint(json.dumps(found))"
    done = subprocess.run([sys.executable, "-P", "-c", whole], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


IMPORT = """
from stagetree.source.importing import import_exactly
from stagetree.source.versions import module_files
files = module_files(path)
imports = import_exactly(path, files)
"""


def test_a_version_covers_imports_below_the_folder(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        trainer="import json, net\nfrom lib.data import load\ndef late():\n    import importlib, lazy\n"
        "    return importlib.import_module('named')",
        net="import lib.losses as losses\nfrom deep import *",
        lib____init__="",
        lib__data="from . import scale\nfrom ..net import nothing",
        lib__losses="",
        lib__scale="",
        lib__unused="",
        lazy="",
        named="",
        deep="import trainer",
        unused="",
    )
    assert list(module_files(path)) == [
        "deep.py", "lazy.py", "lib/__init__.py", "lib/data.py", "lib/losses.py", "lib/scale.py", "named.py", "net.py",
        "trainer.py",
    ]  # fmt: skip


def test_in_a_package_it_covers_the_package_and_nothing_beside_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        beside="",
        pkg____init__="VALUE = 1",
        pkg__sub____init__="",
        pkg__sub__trainer="import beside\nfrom ..net import Net\nfrom . import own\nimport pkg.other",
        pkg__net="from .layers import x",
        pkg__layers="",
        pkg__sub__own="",
        pkg__other="",
    )
    assert list(module_files(tmp_path / "pkg" / "sub" / "trainer.py")) == [
        "pkg/__init__.py", "pkg/layers.py", "pkg/net.py", "pkg/other.py", "pkg/sub/__init__.py", "pkg/sub/own.py",
        "pkg/sub/trainer.py",
    ]  # fmt: skip


@pytest.mark.parametrize("changed", ["trainer", "net", "lib__data"])
def test_any_changed_byte_is_another_version(tmp_path: Path, changed: str) -> None:
    files = {"trainer": "import net, lib.data", "net": "x = 1", "lib__data": ""}
    path = write(tmp_path, **files, unused="")
    before = version_of(module_files(path))
    write(tmp_path, unused="changed = True")
    assert version_of(module_files(path)) == before
    write(tmp_path, **{changed: files[changed] + "\n"})
    assert version_of(module_files(path)) != before


def test_names_count_where_there_are_several() -> None:
    assert version_of({"a.py": b"1", "b.py": b"2"}) != version_of({"a.py": b"2", "b.py": b"1"})
    assert version_of({"a.py": b"1", "b.py": b""}) != version_of({"a.py": b"1"})


def test_a_single_file_keeps_the_version_it_always_had() -> None:
    """So that the plans of trainers without helpers continue."""
    assert version_of({"trainer.py": b"class T: pass\n"}) == "2f9ce96062b742ad"


@pytest.mark.parametrize("name", ["trainer", "net"])
def test_a_file_that_is_not_python_says_so(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, **{"trainer": "import net", "net": "", name: "def ("})
    with pytest.raises(SourceError, match=rf"{name}\.py, line 1: "):
        module_files(path)
    with pytest.raises(SourceError, match="No such file"):
        module_files(tmp_path / "none.py")


def test_imports_equal_the_hashed_files(tmp_path: Path) -> None:
    """Also when the files are edited or deleted in between."""
    path = write(tmp_path, trainer="import net\nVALUE = net.value()", net="def value():\n    return 1")
    change = "open(net, 'w').write('def value(): return 2')\nimport os; os.remove(path)\n"
    code = IMPORT + change + "module = imports.module(); found = [module.VALUE, module.__name__, module.__file__]"
    assert run(code, path=str(path), net=str(tmp_path / "net.py")) == [1, "trainer", str(path)]


def test_relative_imports_work_and_names_are_natural(tmp_path: Path) -> None:
    write(
        tmp_path,
        pkg____init__="",
        pkg__trainer="from .net import Net\nfrom pkg import __name__ as package",
        pkg__net="class Net: pass",
    )
    path = str(tmp_path / "pkg" / "trainer.py")
    code = "m = imports.module(); found = [m.__name__, m.Net.__module__, m.package, imports.uncovered_files()]"
    assert run(IMPORT + code, path=path) == ["pkg.trainer", "pkg.net", "pkg", []]


def test_a_trainer_with_the_name_of_an_imported_module(tmp_path: Path) -> None:
    write(tmp_path, json="VALUE = 1", **{"my-trainer": "VALUE = 2"})
    code = IMPORT + "m = imports.module(); found = [m.VALUE, json.dumps(1)]"
    assert run(code, path=str(tmp_path / "json.py")) == [1, "1"]
    assert run(code, path=str(tmp_path / "my-trainer.py")) == [2, "1"]


def test_a_traceback_shows_the_lines_that_ran(tmp_path: Path) -> None:
    path = write(tmp_path, trainer="def fail():\n    raise ValueError  # as it was imported")
    code = """
module = imports.module()
open(path, "w").write("\\n\\n\\n")
import traceback
try:
    module.fail()
except ValueError:
    found = traceback.format_exc()
"""
    assert "# as it was imported" in run(IMPORT + code, path=str(path))


def test_uncovered_modules_are_reported(tmp_path: Path) -> None:
    """Modules with computed names, and modules in other folders, such as editable installs."""
    hidden = f"import importlib, sys\nsys.path.append({str(tmp_path / 'src')!r})\nimport library.model, torch, yaml\n"
    hidden += "hidden = importlib.import_module('hid' + 'den')"
    path = write(tmp_path / "here", trainer=hidden, hidden="")
    write(tmp_path / "src", library____init__="", library__model="")
    beyond = ["here/hidden.py", "src/library/__init__.py", "src/library/model.py"]
    code = IMPORT + "imports.module(); found = imports.uncovered_files()"
    assert run(code, path=str(path)) == [str(tmp_path / name) for name in beyond]


def test_the_location_of_a_module_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, trainer="VALUE = 1")
    path = tmp_path / "trainer.py"
    imports = Imports(path, tmp_path, "trainer", module_files(path))
    monkeypatch.setattr("stagetree.source.importing.installed_folders", lambda: ("/usr/",))
    before = imports.uncovered_files()
    monkeypatch.setattr("os.path.realpath", lambda file: pytest.fail(f"{file} was looked up again"))
    assert imports.uncovered_files() == before


def test_helpers_of_one_name_in_two_folders(tmp_path: Path) -> None:
    """Each process serves one trainer, and finds its neighbours."""
    paths = [
        write(tmp_path / name, trainer="import common\nVALUE = common.VALUE", common=f"VALUE = {name!r}")
        for name in ("one", "two")
    ]
    assert [run(IMPORT + "found = imports.module().VALUE", path=str(path)) for path in paths] == ["one", "two"]
