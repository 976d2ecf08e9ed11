"""After an input file is replaced, no result of the earlier file is reused, as users who fine-tune expect.

Over `stagetree run`, REST and `local()`, for `begin_from` and for `inputs`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from blocked_files import block_opening, needs_leases
from safetensors.torch import save_file
from stacks import Json, Service, wait_for
from toys import trials

ROOT, SITE = Path(__file__).parents[2], "site"
TRAINER = """
import torch
from stagetree import Trainer

class Number(Trainer):
    name = "number"

    def __init__(self, *, seed, device, data=None):
        self.weight = torch.tensor([float(open(data).read()) if data else 0.0])

    def setup(self, hp):
        self.lr = hp["lr"]

    def begin(self, weights):
        self.weight = weights["weight"].clone()

    def train(self):
        self.weight = self.weight + self.lr

    def evaluate(self):
        return {"score": float(self.weight)}

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, state):
        self.weight = state["weight"].clone()
"""
STUDY: Json = {
    "name": "read",
    "trainer": "number",
    "metric": "score",
    "mode": "max",
    "space": {"lr": [0.5, {"family": "multistep", "init": 0.5, "milestones": [1], "gamma": 0.5}]},
    "tuner": {"kind": "grid", "max_steps": 2},
}
BEGIN: Json = {"begin_from": {"file": "read.bin"}}
UNCHECKED = ("--no-check",)
INPUTS: Json = {"inputs": ["read.bin"], "runtime_args": {"data": "read.bin"}}


def write(folder: Path, fields: Json, value: float) -> None:
    """What the study reads: weights, or a number."""
    if "begin_from" in fields:
        save_file({"weight": torch.tensor([value])}, folder / "read.bin")
    else:
        (folder / "read.bin").write_text(str(value))


def command(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(folder / SITE)])
    how: Json = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": paths}, "timeout": 600}
    return subprocess.run(
        [sys.executable, "-m", "stagetree", *args], capture_output=True, text=True, check=False, **how
    )


def stagetree(folder: Path, *args: str) -> Json:
    done = command(folder, *args, "-o", "json")
    assert done.returncode == 0, done.stderr
    found: Json = json.loads(done.stdout)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with that trainer, whose check observes the files that it reads."""
    monkeypatch.setenv("STAGETREE_PROOFS", "1")
    (tmp_path / "trainer.py").write_text(TRAINER)
    return tmp_path


def run(folder: Path, *options: str, steps: int = 0, **fields: Any) -> Json:
    """What comes of the study with these fields, or of what `study.json` says."""
    if steps or fields:
        tuner = {"tuner": {"kind": "grid", "max_steps": steps}} if steps else {}
        (folder / "study.json").write_text(json.dumps({**STUDY, **fields, **tuner}))
    return stagetree(folder, "run", "study.json", "--slots", "1", "-q", *options)


def shared_results_reason(what: object, where: str = "inputs") -> str:
    return f"{what} has changed since shared results were trained: name it in `{where}` to train with the new one"


def changed_read_reason(what: object) -> str:
    """Of both trials of the study."""
    return f"2 stages read {what}, which had changed since this trainer was first seen to read it"


def brief(study: Json) -> tuple[float, int]:
    assert study["not_exact"] == []
    return study["best"]["value"], study["steps"]["executed"]


@pytest.mark.slow
@pytest.mark.parametrize("fields", [BEGIN, INPUTS], ids=["begin_from", "inputs"])
def test_a_run_sees_that_a_file_was_replaced_and_that_it_is_back(tmp_path: Path, fields: Json) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER)
    told = []
    for value, checked in ((10.0, ()), (20.0, UNCHECKED), (10.0, UNCHECKED)):
        write(tmp_path, fields, value)
        told.append(brief(run(tmp_path, *checked, **fields)))
    assert told == [(11.0, 3), (21.0, 3), (11.0, 0)]
    if "begin_from" in fields:
        said = stagetree(tmp_path, "trial", "last", "1")
        assert said["begins"]["text"].startswith("begins from read.bin (")
        debugged = command(tmp_path, "debug", "last", "0")
        assert "score  11" in debugged.stdout, debugged.stderr
        write(tmp_path, fields, 30.0)
        assert "has changed since" in command(tmp_path, "debug", "last", "0").stderr
    [device] = stagetree(tmp_path, "environment", "last")["devices"]
    assert device["packages"] and device["trainer"]["file"].endswith("trainer.py")


LEFT_OUT: Json = {"runtime_args": {"data": "read.bin"}}


@pytest.mark.slow
def test_results_of_a_file_that_nobody_named_say_when_it_has_changed(folder: Path) -> None:
    """Shared steps were trained with the file before; new steps read the new one."""
    told, read = [], folder / "read.bin"
    for value, steps in ((10.0, 1), (20.0, 1), (20.0, 2), (10.0, 2)):  # the first has seen the file as it was
        write(folder, INPUTS, value)
        told.append(run(folder, steps=steps, **LEFT_OUT)["not_exact"])
    assert told == [
        [],
        [shared_results_reason(read)],
        [changed_read_reason(read), shared_results_reason(read)],
        [changed_read_reason(read)],
    ]
    assert f"1 stage read {read}, which had changed" in command(folder, "trials", "last").stdout


NUMBERS = """
import torch
from pathlib import Path
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __init__(self, folder):
        self.names = sorted(Path(folder).glob("*/*.txt"))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return float(self.names[index].read_text())
"""
PICTURES = NUMBERS + TRAINER.replace(
    "self.weight = torch.tensor([float(open(data).read()) if data else 0.0])",
    "self.weight, self.data = torch.zeros(1), DataLoader(Numbers(data), batch_size=8, num_workers=2)",
).replace("self.weight + self.lr", "self.weight + self.lr * sum(numbers.sum() for numbers in self.data)")


@pytest.mark.slow
def test_a_file_added_to_a_data_set_is_reported(folder: Path) -> None:
    """Processes of the loader read it, and close their files."""
    (folder / "trainer.py").write_text(PICTURES)
    data = folder / "data"
    for number in range(20):
        (data / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        (data / f"{number % 2}" / f"{number}.txt").write_text("1")
    assert run(folder, runtime_args={"data": "data"})["not_exact"] == []
    (data / "1" / "20.txt").write_text("1")
    assert run(folder)["not_exact"] == [
        f"{data}/*/*.txt has changed since shared results were trained: name {data} in `inputs` to train with the "
        "present files"
    ]


LIBRARY = "class Base:\n    begin = {}\n"
OF_LIBRARY = f"import sys\nsys.path.append(LIBRARY)\nfrom library.base import Base\n{TRAINER}".replace(
    "else 0.0", "else Base.begin"
)


@pytest.mark.slow
def test_code_beyond_the_trainers_version_is_seen_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed in place, or in a folder of its own, is no part of the trainer's version."""
    monkeypatch.setenv("STAGETREE_PROOFS", "1")
    library, here = tmp_path / "src" / "library", tmp_path / "here"
    library.mkdir(parents=True)
    here.mkdir()
    trainer = OF_LIBRARY.replace("LIBRARY", repr(str(tmp_path / "src")))
    (library / "__init__.py").touch()
    (here / "study.json").write_text(json.dumps(STUDY))
    told = []
    for begin, version in ((10.0, ""), (20.0, ""), (10.0, "1"), (20.0, "1")):
        (library / "base.py").write_text(LIBRARY.format(begin))
        declared = f'name = "number"\n    version = "{version}"' if version else 'name = "number"'
        (here / "trainer.py").write_text(trainer.replace('name = "number"', declared))
        study = run(here)
        told.append((study["best"]["value"], study["not_exact"]))
    assert told[0] == (11.0, []) and told[2:] == [(11.0, []), (11.0, [])], "an equal version declares the trainer equal"
    assert told[1] == (11.0, [shared_results_reason(library / "base.py")])
    (here / "trainer.py").write_text(trainer)
    assert brief(run(here, inputs=["../src/library"]))[0] == 21.0


@pytest.mark.slow
def test_another_path_among_the_arguments_is_another_file_unless_it_is_a_copy(folder: Path) -> None:
    """`runtime_args` are no part of the plan: results of the file before are shared."""
    told, read = [], folder / "2.txt"
    for name, value, steps in (("1.txt", 10.0, 1), ("copy.txt", 10.0, 1), ("2.txt", 20.0, 1), ("2.txt", 20.0, 2)):
        (folder / name).write_text(str(value))
        told.append(run(folder, steps=steps, runtime_args={"data": name})["not_exact"])
    assert told == [[], [], [shared_results_reason(read)], [changed_read_reason(read), shared_results_reason(read)]]


OF_ENVIRONMENT = TRAINER.replace("import torch\n", "import os, torch\n").replace(
    "float(open(data).read()) if data else 0.0", 'float(os.environ.get("BEGIN", 0))'
)


@pytest.mark.slow
def test_a_variable_that_the_trainer_reads_is_seen_to_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "trainer.py").write_text(OF_ENVIRONMENT)
    told = []
    for value, steps in ((10.0, 1), (20.0, 1), (20.0, 2)):
        monkeypatch.setenv("BEGIN", str(value))
        told.append(run(folder, steps=steps)["not_exact"])
    since = shared_results_reason("$BEGIN", "trainer_args")
    assert told == [[], [since], [changed_read_reason("$BEGIN"), since]]


@pytest.mark.slow
def test_another_version_of_a_package_that_the_trainer_imports_is_said(folder: Path) -> None:
    """After an upgrade, a study was answered with the results of the old version, and nothing said so."""
    (folder / "trainer.py").write_text(TRAINER.replace("import torch\n", "import torch, models_of_others\n"))
    (folder / SITE).mkdir()
    (folder / SITE / "models_of_others.py").touch()
    told = []
    for version, steps in (("1.0.3", 1), ("1.0.3", 1), ("1.0.9", 1), ("1.0.9", 2)):
        install(folder / SITE, "models_of_others", version)
        told.append(run(folder, steps=steps)["not_exact"])
    upgraded, *_ = told[2]
    assert upgraded.startswith("shared results were trained with models_of_others 1.0.3, and there is another now: any")
    went_on = "2 stages resumed under another models_of_others (1.0.9 after 1.0.3)"
    new = "2 stages used models_of_others 1.0.9, where this trainer was first seen to use 1.0.3"
    assert told == [[], [], [upgraded], [went_on, new, upgraded]]
    (folder / "trainer.py").write_text((folder / "trainer.py").read_text() + "\n# 1.0.9\n")
    assert run(folder)["not_exact"] == []


def install(site: Path, name: str, version: str) -> None:
    """Write a package as pip does, over another version."""
    folder = site / f"{name}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


LAUNCHED = """
import torch, stagetree

run = stagetree.attach("number", launch="python", hp={"lr": 0.5}, steps=2, data="read.bin")
weight = torch.tensor([float(open(run.args["data"]).read())])
run.state(
    save=lambda: {"weight": weight},
    load=lambda state: weight.copy_(state["weight"]),
    evaluate=lambda: {"score": weight.sum()},
)
for step, hp in run.steps():
    weight += hp["lr"]
"""


@pytest.mark.slow
def test_a_script_that_a_launcher_starts_is_seen_to_read(folder: Path) -> None:
    (folder / "trainer.py").write_text(LAUNCHED)
    told = []
    for value in (10.0, 20.0):
        write(folder, INPUTS, value)
        told.append(run(folder, **LEFT_OUT)["not_exact"])
    first, [second] = told
    assert not first and second.startswith(f"{folder / 'read.bin'} has changed since shared results were trained")


SCRIPT = f"""
import sys, torch, stagetree
from safetensors.torch import save_file
from pathlib import Path
{TRAINER}
STUDY = dict(metric="score", mode="max", space={{"lr": [0.5]}}, tuner={{"kind": "grid", "max_steps": 2}})
with stagetree.local(slots=1) as server:
    for value in (10.0, 20.0):
        save_file({{"weight": torch.tensor([value])}}, "w.safetensors")
        study = server.create(trainer=Number, begin_from={{"file": "w.safetensors"}}, **STUDY).wait(show=False)
        print(study.best.value, study.answer.steps.executed)
    on = server.create(trainer=Number, begin_from={{"study": study.id, "trial": "best"}}, **STUDY).wait(show=False)
    print(on.best.value, on.answer.begins["text"] == f"begins from trial 0 of study {{study.id}} at step 2")
    for value in (10.0, 20.0):
        Path("data.txt").write_text(str(value))
        how = dict(runtime_args={{"data": str(Path("data.txt").resolve())}}, inputs=["data.txt"])
        study = server.create(trainer=Number, **how, **STUDY).wait(show=False)
        print(study.best.value, study.answer.steps.executed)
    try:
        server.create(trainer=Number, inputs=["none.txt"], **STUDY)
    except stagetree.Invalid as error:
        print(error)
"""


@pytest.mark.slow
def test_a_local_server_sees_what_scripts_replace(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    *lines, refused = done.stdout.splitlines()
    assert lines == ["11.0 2", "21.0 2", "22.0 True", "11.0 2", "21.0 2"]
    assert "none.txt cannot be read: No such file or directory" in refused


@pytest.mark.slow
def test_a_tuned_example_begins_from_another_over_rest(stack: Service, tmp_path: Path) -> None:
    """A real model: after a negligible step, one that begins from weights is better than one that does not."""
    digits = {"name": "pre", "trainer": "digits", "trainer_args": {"width": 8}, "metric": "val_accuracy", "mode": "max"}
    space, tuner = {"lr": 0.05, "bs": 64}, {"kind": "grid", "max_steps": 3}
    first = stack.run({**digits, "space": space, "tuner": tuner})
    tuned = {**digits, "space": {**space, "lr": [1e-9, 2e-9]}, "tuner": {"kind": "grid", "max_steps": 1}}
    study = stack.run({**tuned, "begin_from": {"study": first["study"]}})
    assert study["begins"]["trial"] == 0 and study["begins"]["step"] == 3
    assert abs(study["best"]["value"] - first["best"]["value"]) < 0.05
    assert stack.run(tuned)["best"]["value"] < first["best"]["value"] - 0.2
    assert stack.client.replay(study["study"])["identical"]


@pytest.mark.slow
def test_a_check_names_what_the_study_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text(
        OF_ENVIRONMENT.replace("torch.tensor([", "torch.tensor([len(open('a.csv').read()) + ")
    )
    (tmp_path / "a.csv").touch()
    left_out = "reads             a.csv, which is no part of the study: `inputs: [a.csv]` makes it one"
    variable = "reads             $BEGIN, which is no part of the study: use `trainer_args`, if it matters"
    for fields, told in (({}, [left_out, variable]), ({"inputs": ["a.csv"]}, [variable])):
        (tmp_path / "study.json").write_text(json.dumps({**STUDY, **fields}))
        done = command(tmp_path, "check", "study.json", "--steps", "2")
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if line.startswith("reads")] == told


@pytest.mark.slow
@needs_leases
def test_a_blocked_input_delays_no_other_study_and_its_own_can_be_cancelled(stack: Service, tmp_path: Path) -> None:
    """It took every slot of every project, and nothing showed it."""
    data, slow = tmp_path / "data.txt", tmp_path / "slow"
    data.write_text("one")
    slow.touch()
    study = trials("dead-mount", ({}, 200), inputs=[str(data)])
    study["trainer_args"] |= {"seconds": 0.1, "slow_while": str(slow)}
    waits = stack.submit(study)
    stack.wait_for_step(waits, 3)
    with block_opening(data):
        os.utime(data, (9, 9))  # so that its slot reads it when the stage has ended
        slow.unlink()
        [reads] = wait_for("a slot that reads", lambda: [each for each in stack.client.slots() if each["note"]])
        assert reads["note"].startswith(f"reads the input {data} for ") and reads["study"] == waits
        other = stack.submit(trials("beside-a-dead-mount", ({}, 6)))
        assert stack.wait(other)["state"] == "completed"
        stack.client.cancel(waits)
        idle = {"idle"}
        wait_for("its slot", lambda: {each["state"] for each in stack.client.slots()} == idle, 20.0)
        wait_for("its last word", lambda: not any(each["note"] for each in stack.client.slots()), 20.0)
