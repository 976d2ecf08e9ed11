"""The wheel and the sdist have what strangers need, and nothing else; `make wheel` tries them in fresh environments."""

from __future__ import annotations

import subprocess
from email.message import Message
from pathlib import Path

import pytest
from installed import install
from test_surroundings import clean

from hatch_build import absolute_links
from tools.wheel import build, faults, metadata_faults


@pytest.mark.slow
def test_wheel_and_sdist_are_complete(tmp_path: Path) -> None:
    assert faults(*build(tmp_path)) == []


def test_faults_of_metadata_are_named() -> None:
    found = metadata_faults(_metadata("See [the guide](docs/index.md) and [licence](https://example.org/LICENSE)."))
    assert "the description links to docs/index.md, which leads nowhere on PyPI" in found
    assert "there is no URL Source" in found and "no classifier begins with Typing :: Typed" in found
    assert len(found) == 12


def _metadata(text: str) -> Message:
    message = Message()
    message.set_payload(text)
    return message


def test_links_of_the_readme_lead_to_the_repository() -> None:
    text = "[a](docs/a.md#b), ![p](p.png), [w](https://example.org), [here](#install)"
    source = "https://example.org/x"
    linked = f"[a]({source}/blob/main/docs/a.md#b), ![p]({source}/raw/main/p.png), "
    assert absolute_links(text, source) == linked + "[w](https://example.org), [here](#install)"
    picture = '<source srcset="docs/a.svg"><img src="docs/b.svg"><img src="https://example.org/c.svg">'
    raw = f"{source}/raw/main/docs"
    assert absolute_links(picture, source) == (
        f'<source srcset="{raw}/a.svg"><img src="{raw}/b.svg"><img src="https://example.org/c.svg">'
    )


@pytest.mark.slow
def test_the_demo_runs_from_a_wheel_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "installed").mkdir()
    programs, here = install(tmp_path / "installed"), tmp_path / "empty"
    here.mkdir()
    command = [programs / "stagetree", "demo", "--slots", "2", "--set", "tuner.max_steps=1"]
    done = subprocess.run(command, cwd=here, env=clean(), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Best: trial ") and "\nNext:\n" in done.stdout
