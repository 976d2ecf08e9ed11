"""The registry lists the trainers of the current files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from app import registry
from app.registry import Catalogue, TrainerFileError, describe
from app.service.submission import opening_event
from app.settings import settings
from app.trainer_arguments import check_arguments
from app.workers.prefork import read_trainers
from stagetree.source.definitions import Arguments
from stagetree.spec import SpecError, StudySpec

TRAINER = "from stagetree import Trainer\nclass {}(Trainer):\n    name = {!r}\n"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.fixture
def one(tmp_path: Path) -> str:
    return write(tmp_path / "one.py", "import helper\n" + TRAINER.format("One", "one"))


@pytest.fixture
def two(tmp_path: Path) -> str:
    return write(tmp_path / "two.py", TRAINER.format("Two", "two"))


@pytest.fixture(autouse=True)
def helper(tmp_path: Path) -> Path:
    return Path(write(tmp_path / "helper.py", "x = 1"))


def test_an_edited_helper_is_another_version_at_once(one: str, two: str, helper: Path) -> None:
    catalogue = Catalogue([one, two])
    before = catalogue.describe()
    helper.write_text("x = 2")
    after = catalogue.describe()
    assert after["one"].version != before["one"].version
    assert after["two"] == before["two"]


def test_a_helper_that_appears_is_seen(tmp_path: Path, one: str) -> None:
    """`import helper` now means a package, which Python prefers."""
    catalogue = Catalogue([one])
    before = catalogue.describe()
    (tmp_path / "helper").mkdir()
    write(tmp_path / "helper" / "__init__.py", "x = 3")
    assert catalogue.describe() != before


def test_forks_do_not_read_the_files_again(
    one: str, two: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Reading them in the API and in each slot took a second of each `stagetree run` on two cores."""
    monkeypatch.setattr(registry, "SETTLED_SECONDS", 0.0)
    monkeypatch.setenv("STAGETREE_TRAINERS", f"{one},{two}")
    request.addfinalizer(settings.cache_clear)
    settings.cache_clear()
    read_trainers()
    monkeypatch.setattr(registry, "module_files", lambda path: pytest.fail("the files were read again"))
    assert Catalogue([one, two]).describe().keys() == {"one", "two"}


def test_nothing_is_read_again_while_nothing_changes(one: str, helper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = Catalogue([one])
    monkeypatch.setattr(registry, "SETTLED_SECONDS", 0.0)
    before = catalogue.describe()
    monkeypatch.setattr(registry, "module_files", lambda path: pytest.fail("the files were read again"))
    assert catalogue.describe() == before


def test_a_recently_written_file_is_read_again(one: str, helper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SETTLED_SECONDS", 3600.0)
    catalogue = Catalogue([one])
    before, at = catalogue.describe(), helper.stat()
    helper.write_text("x = 9")
    os.utime(helper, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert catalogue.describe() != before


def test_a_broken_file_hides_only_its_own_trainers(one: str, two: str, helper: Path) -> None:
    catalogue = Catalogue([one, two])
    assert set(catalogue.describe()) == {"one", "two"}
    helper.write_text("def (")
    assert set(catalogue.describe()) == {"two"}
    assert list(catalogue.problems()) == [one]
    with pytest.raises(TrainerFileError, match=r"helper\.py, line 1: "):
        catalogue.find("one")
    assert catalogue.find("three") is None
    helper.write_text("x = 1")
    assert set(catalogue.describe()) == {"one", "two"}


def test_a_literal_version_wins(tmp_path: Path, helper: Path) -> None:
    path = write(tmp_path / "own.py", "import helper\n" + TRAINER.format("Own", "own") + "    version = '7'\n")
    assert describe([path]) == {"own": "7"}
    helper.write_text("x = 2")
    assert describe([path]) == {"own": "7"}


def test_a_lookup_of_one_trainer_checks_only_its_own_file(
    one: str, two: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chain makes a lookup; with eleven examples beside it, checking 460 files took 2 ms."""
    monkeypatch.setattr(registry, "SETTLED_SECONDS", -1.0)
    catalogue, asked = Catalogue([one, two]), list[Path]()
    before, stat = catalogue.describe(), Path.stat
    monkeypatch.setattr(Path, "stat", lambda file: asked.append(file) or stat(file))
    assert catalogue["two"] == before["two"]
    assert (asked.count(Path(one)), asked.count(Path(two))) == (1, 2)  # its kind and its time


def test_a_lookup_of_one_trainer_follows_it_to_another_file(one: str, two: str) -> None:
    catalogue = Catalogue([one, two])
    assert catalogue["one"].path == one
    Path(one).write_text(TRAINER.format("Other", "other"))
    Path(two).write_text(TRAINER.format("One", "one"))
    assert catalogue["one"].path == two
    assert list(catalogue) == ["other", "one"]
    with pytest.raises(KeyError):
        catalogue["two"]


def test_names_must_differ(one: str, tmp_path: Path) -> None:
    other = write(tmp_path / "other.py", TRAINER.format("Other", "one"))
    with pytest.raises(TrainerFileError, match="there is another trainer named 'one'"):
        describe([one, other])
    assert Catalogue([one, other]).describe()["one"].path == one


NOT_TRAINERS = """
import enum
from torch import nn
from torch.utils import data as d
import lightning as L
class Plain:
    name = "plain"
class Net(nn.Module):
    name = "net"
class Deeper(Net):
    name = "deeper"
class Data(d.Dataset[int]):
    name = "data"
class Lit(L.LightningModule):
    name = "lit"
class Broken(ValueError):
    name = "broken"
class Mode(enum.Enum):
    name = "mode"
class Circle(Circle):
    name = "circle"
"""

TRAINERS = """
import stagetree as st
from stagetree import TorchTrainer as Base
from acme.training import AcmeBase
from base import Own
import base
class A(st.TorchTrainer):
    name = "a"
class B(Base):
    name: str = "b"
class C(B):
    name = "c"
class D(AcmeBase):
    name = "d"
class E(Own):
    name = "e"
class F(base.Own):
    name = "f"
class G(base.NotOwn):
    name = "g"
"""


def test_only_trainers_are_offered(tmp_path: Path) -> None:
    write(tmp_path / "base.py", "from stagetree.trainer import Trainer\nclass Own(Trainer): ...\nclass NotOwn: ...\n")
    path = write(tmp_path / "many.py", NOT_TRAINERS + TRAINERS)
    assert list(describe([path])) == ["a", "b", "c", "d", "e", "f"]


def test_a_file_without_trainers_says_what_one_is(tmp_path: Path) -> None:
    path = write(tmp_path / "none.py", NOT_TRAINERS)
    with pytest.raises(TrainerFileError, match="holds no trainer: a subclass of Trainer"):
        describe([path])


SEVERAL = """\
import helper
import stagetree
from stagetree import CommandTrainer, TorchTrainer, Trainer
from stagetree.integrations.lightning import LightningTrainer
from helper import Above

class Plain(Trainer):
    name = "plain"

class Below(Above):
    name = "below"
    def train(self): pass

class Torch(TorchTrainer):
    name = "torch"

class Whole(stagetree.TorchTrainer):
    name = "whole"
    def train_batch(self, batch): pass

class Lightning(LightningTrainer):
    name = "lightning"

class Program(CommandTrainer):
    name = "program"
    command = "python train.py"

class Mixed(helper.Above, dict):
    name = "mixed"
"""
REASONS = {
    "plain": "never uses `self.ranks`: each device would do all the work",
    "below": "never uses `self.ranks`",
    "whole": "overrides `train_batch`, which knows of no shards",
    "lightning": "is a LightningTrainer",
    "program": "is a program, which one process runs",
}


def test_a_trainer_that_cannot_have_several_devices_is_refused_by_its_source(tmp_path: Path, helper: Path) -> None:
    helper.write_text("from stagetree import Trainer\nclass Above(Trainer): pass\n")
    sources = Catalogue([write(tmp_path / "several.py", SEVERAL)]).describe()
    assert {name for name, source in sources.items() if source.single_rank} == REASONS.keys()
    for name, why in REASONS.items():
        tuner = {"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": 3}]}
        study = {"name": "a", "trainer": name, "metric": "m", "mode": "min", "tuner": tuner, "shards": 4}
        check_arguments(StudySpec.from_dict(study), sources[name])
        with pytest.raises(SpecError) as refused:
            check_arguments(StudySpec.from_dict(study | {"ranks": {"least": 1, "most": 4}}), sources[name])
        assert f"must be 1: trainer {name!r} {why}" in str(refused.value)


def test_a_script_with_a_launcher_is_in_plans_of_its_own(tmp_path: Path) -> None:
    text = "import stagetree\nrun = stagetree.attach('gpt', launch='torchrun --nproc-per-node {devices}')\n"
    (source,) = Catalogue([write(tmp_path / "train.py", text)]).describe().values()
    tuner = {"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": 3}]}
    study = {"name": "a", "trainer": "gpt", "metric": "m", "mode": "min", "tuner": tuner, "parallel": "ddp", "ranks": 2}
    assert opening_event(StudySpec.from_dict(study), source).parallel == "launched:2"
    assert opening_event(StudySpec.from_dict(study), replace(source, launched=False)).parallel == "ddp:2"


def test_a_trainer_whose_files_know_of_ranks_is_not_refused(tmp_path: Path, helper: Path) -> None:
    helper.write_text("def total(trainer, parts):\n    return trainer.ranks.sum(parts)\n")
    text = "from helper import total\n" + TRAINER.format("Own", "own")
    assert Catalogue([write(tmp_path / "own.py", text)]).describe()["own"].single_rank == ""


def test_a_class_that_goes_round_in_a_circle_is_left_alone(tmp_path: Path) -> None:
    text = "from stagetree import Trainer\nclass A(B): pass\nclass B(A): pass\n" + TRAINER.format("C", "c")
    assert Catalogue([write(tmp_path / "circle.py", text)]).describe().keys() == {"c"}


FUNCTIONS = """\
import stagetree

def build(seed, device, start=4.0):
    raise AssertionError("it is read, not run")

Line = stagetree.function_trainer("line", build, step, measure)
stagetree.function_trainer("unbound", build, step, measure)
"""


def test_functions_make_a_trainer_that_a_study_may_name(tmp_path: Path) -> None:
    path = write(tmp_path / "functions.py", FUNCTIONS)
    assert list(describe([path])) == ["line"]
    source = Catalogue([path]).find("line")
    assert source is not None and source.takes == Arguments(("start",), (), is_open=False)
    assert source.lacks == {"begin", "average"}
