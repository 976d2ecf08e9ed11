"""What `import stagetree` gives: every name, for programs, editors and prompts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import pytest

import stagetree
from stagetree import Exponential, Space, SpaceError, StudySpec, choice, loguniform, randint, uniform
from stagetree.spec import SpecError
from stagetree.spec.tuners import KINDS
from tools.shape import ROOT

FIELDS = {"name": "x", "trainer": "x", "metric": "x", "mode": "max"}


def test_every_public_name_exists() -> None:
    assert all(getattr(stagetree, name) is not None for name in stagetree.__all__)
    assert {kind.__name__ for kind in KINDS.values()} <= set(stagetree.__all__)


def test_a_prompt_completes_the_public_names_and_no_others() -> None:
    assert dir(stagetree) == sorted(stagetree.__all__)


def test_the_version() -> None:
    assert stagetree.__version__ == version("stagetree")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'AshaTunner'"):
        stagetree.AshaTunner  # noqa: B018


STANDARD = {
    *("__future__", "collections", "contextlib", "copyreg", "enum", "functools", "importlib", "itertools", "keyword"),
    *("operator", "re", "reprlib", "types", "typing", "warnings"),
}
"""The modules of Python that `import stagetree` may import, apart from their own parts: see benchmarks/start.py."""


def test_importing_the_package_imports_nothing_of_it() -> None:
    """Each name is imported when it is used first, so that programs and completion start at once: in 60 ms at most."""
    code = "import sys; before = set(sys.modules); import stagetree; print(*set(sys.modules) - before)"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {code}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    whole = {name.partition(".")[0] for name in loaded if not name.startswith("_") or name == "__future__"}
    assert whole - {"stagetree"} <= STANDARD
    assert {name for name in loaded if name.startswith("stagetree")} == {"stagetree"}


def test_a_client_imports_no_answers_that_it_never_takes() -> None:
    """Pages of others, and pictures, are for servers and the page: making their classes took time in every command."""
    code = "import sys, stagetree, stagetree.models; stagetree.Client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"stagetree.client", "stagetree.models.studies"} <= set(loaded)
    assert "stagetree.models.pages" not in loaded


@pytest.mark.slow
def test_a_type_checker_knows_the_fields_of_answers(tmp_path_factory: pytest.TempPathFactory) -> None:
    program = tmp_path_factory.mktemp("typed") / "program.py"
    program.write_text(
        "import stagetree\n"
        "study = stagetree.Study.create(name='x')\n"
        "reveal_type(stagetree.Client().study('x').best)\n"
        "reveal_type(study.wait())\n"
        "reveal_type(study.eval({'lr': 1}, 2).value)\n"
        "stagetree.Client().study(3)\n"
    )
    command = [sys.executable, "-m", "mypy", str(program)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert '"stagetree.models.studies.Best | None"' in said
    assert '"stagetree.study.Study"' in said
    assert '"float"' in said
    assert 'incompatible type "int"; expected "str"' in said


# ------------------------------------------------------------------------------------------------------- distributions


def test_distributions_are_written_in_python() -> None:
    decay = {"family": "exponential", "init": loguniform(1e-4, 1e-1), "gamma": uniform(0.9, 1)}
    entries = {"lr": decay, "bs": choice([64, 128]), "layers": randint(1, 3), "steps": [Exponential(1, 0.5), 2]}
    spec = StudySpec(**FIELDS, space=entries, tuner={"kind": "asha", "num_trials": 4, "min_steps": 1, "max_steps": 4})
    written = {
        "lr": {"family": "exponential", "init": {"loguniform": [1e-4, 1e-1]}, "gamma": {"uniform": [0.9, 1]}},
        "bs": {"choice": [64, 128]},
        "layers": {"randint": [1, 3]},
        "steps": [{"family": "exponential", "init": 1, "gamma": 0.5}, 2],
    }
    assert spec.to_json()["space"] == Space(entries).to_json() == written
    assert Space(entries).sample(0, 3) == Space(written).sample(0, 3)
    assert Space({"bs": choice([choice([1, 2]), 3])}).size() == 3


def test_a_tuner_is_written_in_python() -> None:
    tuner = stagetree.AshaTuner(num_trials=4, min_steps=1, max_steps=4, eta=2)
    assert StudySpec(**FIELDS, space={"lr": uniform(0, 1)}, tuner=tuner).to_json()["tuner"]["reduction_factor"] == 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: stagetree.GridTuner(max_steps="x"),
         "tuner.max_steps: must be the number of steps to train each trial for, at least 1, got 'x'"),
        (lambda: stagetree.GridTuner(max_steps=4, max_stepz=3),
         "tuner.max_stepz: is not a field here; did you mean max_steps?"),
        (lambda: stagetree.TrialsTuner(trials=[{"hp": {"lr": 0.1}, "steps": 0}]),
         "tuner.trials[0].steps: must be the number of steps to train for, at least 1, got 0"),
        (lambda: stagetree.AshaTuner(num_trials=4, min_steps=1, max_steps=4, first=[{"lr": {"family": "cosin"}}]),
         "tuner.first[0].lr.family: must be one of constant"),
    ],
)  # fmt: skip
def test_a_tuner_that_cannot_be_says_what_would_be_right(make: Callable[[], object], sentence: str) -> None:
    """It raised pydantic's own error, with a URL, where everything else raises a SpecError."""
    with pytest.raises(SpecError) as raised:
        make()
    assert sentence in str(raised.value) and "pydantic" not in str(raised.value)


def objective(trial: object) -> float:
    return 0.0


def test_a_function_given_as_a_trainer_names_the_right_call() -> None:
    """It was a TypeError of the JSON encoder."""
    for submit in (
        lambda: stagetree.Study.create(**FIELDS | {"trainer": objective}),
        lambda: StudySpec(**FIELDS | {"trainer": objective}),
    ):
        with pytest.raises(SpecError, match=r"trainer: must be .* function objective: stagetree\.function_trainer\("):
            submit()
    with pytest.raises(SpecError, match=r"the class Uniform: `stagetree\.local\(\)` takes classes"):
        stagetree.Study.create(**FIELDS | {"trainer": stagetree.Uniform})


def test_a_hyper_parameter_beside_the_space_is_led_into_it() -> None:
    with pytest.raises(SpecError, match=r"^lr: is no field of a study; did you mean space\.lr\?$"):
        StudySpec(**FIELDS, space={"lr": [0.1]}, tuner={"kind": "grid", "max_steps": 3}, lr=0.2)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: uniform(2, 1), "uniform: must be [lowest, highest], but 2 is more than 1"),
        (lambda: loguniform(0, 1), "loguniform: must have bounds above 0, since their logarithms are used, got [0, 1]"),
        (lambda: randint(1, 2.5), "randint: must be [lowest, highest], two whole numbers, got [1, 2.5]"),
        (lambda: choice([]), "choice: must be a list of at least one option, got []"),
    ],
)
def test_distributions_that_cannot_be(make: object, problem: str) -> None:
    with pytest.raises(SpaceError) as refused:
        make()  # type: ignore[operator]
    assert str(refused.value) == problem


def test_numbers_of_numpy_are_numbers() -> None:
    space = {"bs": list(np.array([64, 128])), "lr": uniform(np.float32(0.5), np.int64(1)), "n": np.int64(3)}
    spec = StudySpec(**FIELDS, space=space, tuner={"kind": "random", "num_trials": 2, "max_steps": 4})
    assert spec.to_json()["space"] == {"bs": [64, 128], "lr": {"uniform": [0.5, 1]}, "n": 3}
