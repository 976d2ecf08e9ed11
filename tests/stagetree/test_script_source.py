"""What the source of a script tells before it is run: its trainers, the names that it sets, reads and takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from walking_scripts import SCRIPT

from app.registry import Catalogue
from stagetree.source.discovery import scripts
from stagetree.source.loops import read_in_steps, set_in_each_step


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import stagetree\nrun = stagetree.attach('a', width=3)", {"a"}),
        ("from stagetree import attach\ndef main():\n    run = attach('a')", {"a"}),
        ("import stagetree as st\nst.attach('a'); st.attach('b')", {"a", "b"}),
        ("import stagetree\nstagetree.attach(name)", set()),
        ("import debugger\ndebugger.attach('a')", set()),
        ("def attach(name): ...\nattach('a')", set()),
    ],
)
def test_a_script_is_found_without_being_run(tmp_path: Path, text: str, names: set[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    assert scripts(file, {"train.py": text.encode()}).keys() == names
    assert set(Catalogue([str(file)]).describe()) == names


def test_another_text_is_another_version(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    versions = []
    for text in (SCRIPT, SCRIPT + "\n# one more line"):
        file.write_text(text)
        versions.append(Catalogue([str(file)]).describe()["walk"].version)
    assert versions[0] != versions[1]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("x = 1\n    y = x", {"x", "y"}),
        ("y = x\n    x = 1", {"y"}),
        ("x += 1", set()),
        ("if step:\n        x = 1\n    x = 2", set()),
        ("for i in range(3):\n        x = i", {"i", "x"}),
        ("def f():\n        x = 1", set()),
        ("x = x + 1", set()),
        ("(x, y), *z = f(step)", {"x", "y", "z"}),
    ],
)
def test_names_that_each_step_sets_anew(tmp_path: Path, body: str, names: set[str]) -> None:
    text = f"for step, hp in run.steps():\n    {body}\n".encode()
    assert set_in_each_step(tmp_path / "train.py", {"train.py": text}) == names | {"step", "hp"}


READING = "from stagetree import attach\nrun = attach('walk')\nfor step, hp in run.steps():\n    "


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (READING + "x = hp['lr'] * hp.get('decay', 0.0)", {"lr", "decay"}),
        (READING + "x = hp.pop('lr') if 'lr' in hp or 'wd' not in hp else 0", {"lr", "wd"}),
        (READING + "pass", set()),
        (READING + "f = lambda: hp['lr']\nrun.log('x', 1)", {"lr"}),
        (READING + "hp = {'lr': 1}", set()),
        (READING + "use(hp)", None),
        (READING + "use(**hp)", None),
        (READING + "x = hp[name]", None),
        (READING + "x = [*hp.values()]", None),
        (READING + "x = hp", None),
        (READING + "x = locals()", None),
        (READING + "pass\nuse(run)", None),
        (READING + "pass\nother = run.steps()", None),
        (READING.replace("step, hp in run", "each in run") + "pass", None),
        (READING.replace("run.steps()", "enumerate(run.steps())") + "pass", None),
        (READING.replace("run.steps()", "attach('walk').steps()") + "pass", None),
        ("import stagetree\nuse(stagetree.attach('walk'))", None),
    ],
)
def test_the_source_gives_the_values_that_a_script_may_read(tmp_path: Path, text: str, names: set[str] | None) -> None:
    assert read_in_steps(tmp_path / "train.py", {"train.py": text.encode()}) == names


@pytest.mark.parametrize(
    ("call", "names", "is_open"),
    [
        ("attach('walk', width=3, seed=1, hp={}, caches=('x',))", ("width",), False),
        ("attach('walk', **options)", (), True),
        ("attach('walk', width=3) if fast else attach('walk', depth=2)", ("width", "depth"), False),
        ("attach('walk')", (), False),
    ],
)
def test_the_source_gives_the_arguments_of_a_script(
    tmp_path: Path, call: str, names: tuple[str, ...], is_open: bool
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"from stagetree import attach\nrun = {call}\n")
    takes = Catalogue([str(file)]).describe()["walk"].takes
    assert (takes.names, takes.required, takes.is_open) == (names, (), is_open)
