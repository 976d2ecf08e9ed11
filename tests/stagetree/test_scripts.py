"""Scripts that own their loop: found without being run, run in turn with the runner, and exact."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from built_models import image, trained_to
from forks import checked
from stacks import Json

from app.cli.check import report_lines
from app.registry import Catalogue
from stagetree import attach
from stagetree.runtime import inexact_reasons
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.exactness.held_values import differing_names, digest_held_values
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.loading import code_modules, load_trainer
from stagetree.runtime.model import HpTimeline, Model
from stagetree.source.discovery import scripts
from stagetree.source.loops import read_in_steps, set_in_each_step

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/script/train.py"
HP = {"lr": {"family": "linear", "init": 0.5, "slope": -0.01}}

SCRIPT = """
import random
import stagetree

run = stagetree.attach("walk", scale=1.0)
where = 0.0

def load(state):
    global where
    where = state["where"]

run.state(save=lambda: {"where": where}, load=load, evaluate=lambda: {"where": where})
for step, hp in run.steps():
    where += run.args["scale"] * hp["lr"] * random.random()
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builds the model of a script's text, each in a file of its own."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # where a script is, while it is run

    def built(text: str, **args: Any) -> Model:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        file = folder / "walk.py"
        file.write_text(text)
        return Model.build(load_trainer(file, "walk"), args, 3, "cpu")

    return built


def trained(model: Model, until: int, hp: Json = HP) -> Model:
    return trained_to(model, until, hp)


# ------------------------------------------------------------------------------------------------ found


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
def test_the_source_tells_what_a_script_may_read(tmp_path: Path, text: str, names: set[str] | None) -> None:
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
def test_the_source_tells_what_a_script_takes(tmp_path: Path, call: str, names: tuple[str, ...], is_open: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"from stagetree import attach\nrun = {call}\n")
    takes = Catalogue([str(file)]).describe()["walk"].takes
    assert (takes.names, takes.required, takes.is_open) == (names, (), is_open)


# ------------------------------------------------------------------------------------------------ run in turn


def test_split_equals_whole(build: Any) -> None:
    whole = trained(build(SCRIPT, scale=2.0), 12)
    assert whole.evaluate()["where"] > 0
    half = image(trained(build(SCRIPT, scale=2.0), 5))
    gone_on = build(SCRIPT, scale=2.0)
    gone_on.load(state_format.unpack(half), HpTimeline(HP), 5)
    assert image(trained(gone_on, 12)) == image(whole)
    whole.load(state_format.unpack(half), HpTimeline(HP), 5)  # back, in the same object
    assert image(trained(whole, 12)) == image(gone_on)


def test_two_models_of_one_script_do_not_meet(build: Any) -> None:
    one, other = build(SCRIPT, scale=1.0), build(SCRIPT, scale=10.0)
    for step in range(1, 5):
        trained(one, step)
        trained(other, step)
    assert other.evaluate()["where"] > 3 * one.evaluate()["where"]
    assert one.evaluate() == trained(build(SCRIPT, scale=1.0), 4).evaluate()


def test_a_fork_goes_on_with_the_script(build: Any) -> None:
    """As the check does, which trains each way in a process of its own."""
    model = trained(build(SCRIPT), 3)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, repr(trained(model, 6).evaluate()["where"]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert float(os.read(reading, 100)) == trained(model, 6).evaluate()["where"]


def test_it_is_told_the_step_and_the_values(build: Any) -> None:
    text = SCRIPT.replace("where += ", "where = where * 100 + step + hp['lr'] if step < 3 else 0 and ")
    assert trained(build(text), 3).evaluate()["where"] == ((0.5) * 100 + 1.49) * 100 + 2.48


def test_a_closed_script_ends(build: Any, capsys: pytest.CaptureFixture[str]) -> None:
    head, _, loop = SCRIPT.partition("for step")
    inside = ("for step" + loop).replace("\n", "\n    ").rstrip()
    model = trained(build(f"{head}try:\n    {inside}\nfinally:\n    print('ended')\n"), 2)
    model.trainer.close()
    model.trainer.close()
    assert capsys.readouterr().out == "ended\n"


def test_a_schedule_of_its_own_is_named_in_the_log(build: Any, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = (
        "from torch import nn, optim\nown = optim.lr_scheduler.StepLR(optim.SGD(nn.Linear(1, 1).parameters()), 3)\n"
    )
    build(SCRIPT)
    assert capsys.readouterr().out == ""
    build(schedule + SCRIPT)
    assert capsys.readouterr().out.startswith("--- StepLR: a schedule of the script's own cannot be shared")
    build(schedule.replace("StepLR", "ReduceLROnPlateau").replace(", 3)", ")") + SCRIPT)
    assert capsys.readouterr().out == (
        "--- ReduceLROnPlateau: its rates follow from results, so run.state must save and load its state_dict\n"
    ), "what is saved with the state is shared as the state is"


# ------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SCRIPT.replace("run.state(", "dict("), "run.state(save=..., load=..., evaluate=...) must be called before"),
        (SCRIPT.split("for step")[0], "walk.py has ended: it must loop over run.steps()"),
        (SCRIPT.replace("where = 0.0", "import sys; sys.exit(2)"), "walk.py called sys.exit(2)"),
        (SCRIPT.replace("where = 0.0", "where = 1 / 0"), "ZeroDivisionError"),
    ],
)
def test_a_script_that_does_not_come_to_its_loop(build: Any, text: str, problem: str) -> None:
    with pytest.raises(TrainerFailed) as caught:
        build(text)
    assert problem in caught.value.error


def test_an_argument_that_it_does_not_take(build: Any) -> None:
    with pytest.raises(TrainerFailed, match=r"trainer_args.scal: the script takes scale; did you mean scale\?"):
        build(SCRIPT, scal=2.0)


def test_an_error_in_its_loop_is_its_users(build: Any) -> None:
    model = trained(build(SCRIPT.replace("    where +=", "    assert step < 2\n    where +=")), 2)
    with pytest.raises(TrainerFailed, match="assert step < 2"):
        trained(model, 3)
    with pytest.raises(TrainerFailed, match="has ended"):
        trained(model, 3)


def test_a_loop_that_is_left_early(build: Any) -> None:
    model = build(SCRIPT + "    if step == 2:\n        break\n")
    with pytest.raises(TrainerFailed, match=r"it must loop over run.steps\(\) for as long as"):
        trained(model, 4)


def test_an_error_between_steps_leaves_the_loop_as_it_is(build: Any) -> None:
    model = trained(build(SCRIPT.replace('{"where": where})\nfor', '{"where": where / (where > 1)})\nfor')), 1)
    with pytest.raises(TrainerFailed, match="ZeroDivisionError"):
        model.evaluate()
    assert trained(model, 20).evaluate()["where"] > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("forgotten", "cause"),
    [
        ('"optimizer": optimizer.state_dict(), ', "optimizer"),
        pytest.param(', "batch": list(batch)', "batch", marks=pytest.mark.night),
    ],
)
def test_a_script_that_forgets_is_found(tmp_path: Path, forgotten: str, cause: str) -> None:
    text = EXAMPLE.read_text()
    assert forgotten in text
    loading = {"optimizer": '    optimizer.load_state_dict(state["optimizer"])  # stagetree\n'}
    loading["batch"] = text[text.index("    batch = [each.to") :].partition("\n")[0] + "\n"
    (tmp_path / "script").mkdir()
    (tmp_path / "charlm").symlink_to(ROOT / "examples/charlm")
    file = tmp_path / "script/train.py"
    file.write_text(text.replace(forgotten, "").replace(loading[cause], ""))
    study = str(ROOT / "examples/script/study.yaml")
    command = [sys.executable, "-m", "stagetree", "check", study, "--trainers", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "leaves differ, the first is trainer.state" in done.stdout


DRAWING = """
import numpy
import stagetree
import torch
from torch.utils.data import DataLoader, Dataset

class Drawing(Dataset):
    def __init__(self):
        self.rng = numpy.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return float(self.rng.normal())

run = stagetree.attach("walk")
loader = DataLoader(Drawing(), batch_size=2)
where = 0.0

def load(state):
    global where
    where = state["where"]

run.state(save=lambda: {"where": where}, load=load, evaluate=lambda: {"where": where})
for step, hp in run.steps():
    for batch in loader:
        where += hp["lr"] * float(batch.sum())
"""

IN_MAIN = """
import random
import stagetree

def main():
    run = stagetree.attach("walk")
    chance, where = random.Random(0), [0.0]

    def load(state):
        where[0] = state["where"]

    run.state(save=lambda: {"where": where[0]}, load=load, evaluate=lambda: {"where": where[0]})
    for step, hp in run.steps():
        where[0] += hp["lr"] * chance.random()

main()
"""

NOT_RESTORED = {
    "a data set's": (DRAWING, "loader.dataset (a global of walk.py)"),
    "a function's": (IN_MAIN, "chance (a variable of main())"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "place"), NOT_RESTORED.values(), ids=NOT_RESTORED)
def test_the_place_of_a_generator_is_named_in_words_of_a_script(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "walk.py").write_text(text)
    report = checked({"file": str(tmp_path / "walk.py"), "name": "walk", "args": {}, "seed": 0, "hp": HP})
    assert report["differences"].keys() == {"split"}
    cause = report["differences"]["split"].partition(". Likely: ")[2]
    assert cause.startswith(place) and cause.endswith("not in the state: changed after load() of run.state")


FORGOT_TRAIN = """
import stagetree
import torch

def main():
    run = stagetree.attach("walk")
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))

    def evaluate():
        net.eval()
        return {"value": net(torch.ones(2)).sum().item()}

    run.state(save=lambda: net.state_dict(), load=lambda state: net.load_state_dict(state), evaluate=evaluate)
    for step, hp in run.steps():
        net.zero_grad()
        net(torch.ones(2)).sum().backward()
        with torch.no_grad():
            for each in net.parameters():
                each -= hp["lr"] * each.grad

main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [FORGOT_TRAIN, FORGOT_TRAIN.replace("def main():", "if True:").replace("\nmain()", "")]
)
def test_a_module_that_a_script_leaves_in_evaluation_mode_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "walk.py").write_text(text)
    report = checked({"file": str(tmp_path / "walk.py"), "name": "walk", "args": {}, "seed": 0, "hp": HP})
    assert report["differences"].keys() == {"watched"}
    cause = "Likely: evaluate() or save() of run.state changes something that the loop reads"
    assert report["differences"]["watched"].endswith(cause)


@pytest.mark.slow
def test_an_iterator_is_named_in_words_of_a_script(tmp_path: Path) -> None:
    text = SCRIPT.replace("where = 0.0", "import itertools; count = itertools.count(); where = 0.0")
    (tmp_path / "walk.py").write_text(text.replace("random.random()", "next(count)"))
    report = checked({"file": str(tmp_path / "walk.py"), "name": "walk", "args": {}, "seed": 0, "hp": HP})
    assert report["differences"].keys() == {"split"}
    words = "Likely: count (a global of walk.py) not in the state: changed after load() of run.state"
    assert report["differences"]["split"].endswith(words)


def test_each_cause_has_words_for_scripts() -> None:
    causes = [each for name, each in vars(inexact_reasons).items() if name.isupper() and isinstance(each, str)]
    for words in map(inexact_reasons.rephrase_for_scripts, [*causes, inexact_reasons.unrestored_cause(["x"])]):
        assert not any(word in words for word in ("train()", "load_state_dict", "setup()", "state_dict()")), words


STREAMED = """
class Data(list):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

run.stream(Data([1, 2, 3]))
"""


@pytest.mark.parametrize("streams", ["", STREAMED])
def test_what_cannot_be_saved_is_named_as_the_script_knows_it(build: Any, streams: str) -> None:
    """It was `state['trainer']['state']['seen']`, a place that no script has."""
    text = SCRIPT.replace('{"where": where}, load', '{"where": where, "seen": {1, 2}}, load')
    model = trained(build(text.replace("for step", f"{streams}for step")), 1, HP)
    with pytest.raises(TrainerFailed) as failed:
        model.save()
    assert failed.value.error == 'save()["seen"] is a set; write list(seen)'
    assert failed.value.is_final and failed.value.kind == "exception"


# ------------------------------------------------------------------------------------------------ what it reads

TWO = {**HP, "decay": 0.1}


@pytest.mark.parametrize(
    ("reads", "unread"),
    [
        ("hp['lr']", ["decay"]),
        ("hp['lr'] * hp.get('decay')", []),
        ("hp['lr'] * ('decay' in hp)", []),
        ("hp['lr'] if step < 2 else hp['decay']", []),
        ("sum(hp.values())", []),
        ("dict(hp)['lr']", []),
        ("dict(**hp)['lr']", []),
        ("{**hp}['lr']", []),
        ("(hp | {})['lr']", []),
        ("hp.copy()['lr']", []),
        ("__import__('copy').deepcopy(hp)['lr']", []),
        ("__import__('json').loads(__import__('json').dumps(hp))['lr']", []),
        ("hp.pop('lr')", ["decay"]),
        ("[hp[name] for name in hp][0]", []),
        ("1.0", ["decay", "lr"]),
    ],
)
def test_it_is_known_what_a_script_has_read(build: Any, reads: str, unread: list[str]) -> None:
    model = trained(build(SCRIPT.replace('hp["lr"]', f"({reads})")), 3, TWO)
    assert model.trainer.unread() == unread  # type: ignore[attr-defined]


@pytest.mark.slow
def test_check_names_what_a_script_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(SCRIPT)
    report = checked({"file": str(tmp_path / "walk.py"), "name": "walk", "args": {}, "seed": 0, "hp": TWO})
    assert (report["unread"], report["differences"]) == (["decay"], {})
    assert "not read          `decay` changes nothing: `setup` never reads it, nor do the 4 steps" in report_lines(
        report
    )


# ------------------------------------------------------------------------------------------------ by hand, the example


@pytest.mark.slow
def test_by_hand_it_trains_one_configuration(tmp_path: Path) -> None:
    file = tmp_path / "walk.py"
    file.write_text(SCRIPT.replace("scale=1.0", "scale=1.0, hp={'lr': 0.5}, steps=5, eval_every=2, seed=1"))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["step 2", "step 4", "step 5"]
    assert "where " in done.stdout


def test_the_example_differs_from_a_plain_script_by_few_lines() -> None:
    assert sum("# stagetree" in line for line in EXAMPLE.read_text().splitlines()) <= 15


# ------------------------------------------------------------------------------------------------ streams

STREAMING = """
import random
import stagetree

class Numbers:
    place = 0

    def __iter__(self):
        while self.place < 5:
            self.place += 1
            yield self.place + random.random()
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]

run = stagetree.attach("walk", hp={"lr": 0.5}, steps=7)
numbers = run.stream(Numbers())
where = 0.0

def load(state):
    global where
    where = state["where"]

run.state(save=lambda: {"where": where}, load=load, evaluate=lambda: {"where": where})
for step, hp in run.steps():
    where += hp["lr"] * next(numbers) * random.random()
"""


MIXING = STREAMING.replace("run.stream(Numbers())", 'run.stream({"a": Numbers(), "b": Numbers()})').replace(
    "    where +=", '    numbers.mix("a" if step < 4 else "a:0.25,b:0.75")\n    where +='
)


@pytest.mark.parametrize("broken", [1, 5, 6])
@pytest.mark.parametrize("script", [STREAMING, MIXING], ids=["stream", "mix"])
def test_the_place_in_a_stream_goes_with_the_state(build: Any, script: str, broken: int) -> None:
    whole, half = trained(build(script), 9), trained(build(script), broken)
    middle = image(half)
    for other in (build(script), whole):
        end = image(whole)
        other.load(state_format.unpack(middle), HpTimeline(HP), broken)
        assert image(other) == middle and image(trained(other, 9)) == end


LOADING = DRAWING.replace("loader = DataLoader(", "batches = run.stream(loader := StatefulDataLoader(").replace(
    "batch_size=2)", "batch_size=2, shuffle=True, generator=torch.Generator()))"
)
LOADING = LOADING.replace(
    "import torch\n", "import torch\nfrom torchdata.stateful_dataloader import StatefulDataLoader\n"
)
LOADING = LOADING.replace("for batch in loader:", "for batch in [next(batches)]:")
QUIET = LOADING.replace("self.rng.normal()", "index")


def held(model: Model) -> dict[str, str]:
    """What the script has beside its state."""
    return digest_held_values(model.trainer, code_modules(str(model.trainer.file)))  # type: ignore[attr-defined]


def stray(model: Model) -> list[str]:
    """What does not come back with the state of step 2, once the model was trained further."""
    trained(model, 2)
    middle, before = image(model), held(model)
    trained(model, 5).load(state_format.unpack(middle), HpTimeline(HP), 2)
    return differing_names(before, held(model))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (STREAMING, []),
        (MIXING, []),
        (QUIET, []),
        (STREAMING.replace("run.stream(Numbers())", "iter(own := Numbers())"), ["own.place", "numbers"]),
    ],
    ids=["own", "mixed", "loader", "no stream"],
)
def test_the_data_of_a_stream_comes_back(build: Any, text: str, names: list[str]) -> None:
    assert [name.removesuffix(" (a global of walk.py)") for name in stray(build(text))] == [
        name.removesuffix(" (a global of walk.py)") for name in names
    ]


COUNTING = SCRIPT.replace("where = 0.0", "where, seen, last = 0.0, 0, 0").replace(
    "    where +=", "    seen += 1; last += 1\n    where +="
)


@pytest.mark.parametrize(
    ("caches", "names"),
    [("()", ["seen", "last"]), ('"seen"', ["last"]), ('["seen", "last"]', []), ('("last", "elsewhere")', ["seen"])],
)
def test_a_script_says_which_variables_do_not_matter(build: Any, caches: str, names: list[str]) -> None:
    text = COUNTING.replace("scale=1.0", f"scale=1.0, caches={caches}")
    assert stray(build(text)) == [f"{name} (a global of walk.py)" for name in names]


def test_what_does_not_matter_is_said_by_name(build: Any) -> None:
    with pytest.raises(ValueError, match='caches: the names of variables, such as "last_batch", not a float'):
        attach("walk", caches=[1.0])  # type: ignore[list-item]
    with pytest.raises(TrainerFailed, match="caches: the names of variables"):
        build(SCRIPT.replace("scale=1.0", "scale=1.0, caches=[random]"))


@pytest.mark.slow
def test_a_script_with_a_stream_trains_by_hand(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text(STREAMING)
    done = subprocess.run(
        [sys.executable, "walk.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert done.returncode == 0 and b"step 7: where" in done.stdout, done.stderr
