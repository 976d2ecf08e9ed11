from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagetree.sequences import Constant, MultiStep, Sequence, SequenceError, parse
from stagetree.space import Space, SpaceError
from stagetree.space.where import WhereError, compile_where

STEPPED = {"family": "multistep", "init": 0.1, "milestones": [20, 30], "gamma": 0.1}
GOLDEN: list[list[Any]] = [[16, "lion"], [312, "adam"], [828, "adam"]]
GOLDEN_LR = [0.0014352399846302584, 0.00926549753277476, 0.00025530210459212674]
MIXED = {"lr": [STEPPED, 0.1], "bs": [64, 128]}


def grid(space: Space) -> list[list[Any]]:
    """The configurations as lists of JSON, constants as bare values."""
    return [[_bare(sequence) for sequence in hp.values()] for hp in space.grid()]


def _bare(sequence: Sequence) -> Any:
    return sequence.value if isinstance(sequence, Constant) else sequence.to_json()


def test_a_grid_crosses_lists_and_the_last_name_varies_fastest() -> None:
    assert grid(Space(MIXED)) == [[STEPPED, 64], [STEPPED, 128], [0.1, 64], [0.1, 128]]


def test_a_grid_crosses_choices_at_any_depth() -> None:
    inner = {"family": "exponential", "init": {"choice": [1, 2]}, "gamma": {"choice": [0.5, 0.9]}}
    space = Space({"lr": [{"family": "warmup", "steps": 2, "then": inner}, {"choice": [3, 4]}], "bs": {"choice": [64]}})
    found = [(hp["lr"].at(2), hp["lr"].at(3), hp["bs"].at(0)) for hp in space.grid()]
    assert found == [(1, 0.5, 64), (1, 0.9, 64), (2, 1, 64), (2, 1.8, 64), (3, 3, 64), (4, 4, 64)]
    assert space.size() == 6


def test_a_list_inside_a_family_is_not_a_choice() -> None:
    lists = {"family": "multistep", "init": 1, "milestones": {"choice": [[1, 2], [3]]}, "gamma": 0.1}
    assert [hp["lr"] for hp in Space({"lr": lists}).grid()] == [MultiStep(1, [1, 2], 0.1), MultiStep(1, [3], 0.1)]


def test_sequences_may_be_objects_of_python() -> None:
    space = Space({"lr": [MultiStep(0.1, [20, 30], 0.1), 0.1], "bs": (64, Constant(128))})
    assert list(space.grid()) == list(Space(MIXED).grid())
    assert list(Space.parse(space.to_json()).grid()) == list(space.grid())


def test_a_grid_refuses_continuous_ranges() -> None:
    space = Space({"bs": [64], "lr": [0.1, {"family": "linear", "init": {"uniform": [0, 1]}, "slope": 0}]})
    assert space.size() is None
    with pytest.raises(
        SpaceError, match=r"lr\[1\]: must be listed for a grid: uniform has no list of values, use choice"
    ):
        list(space.grid())


@given(st.integers(0, 2**32 - 1), st.integers(0, 10_000))
def test_samples_lie_in_their_distributions(seed: int, number: int) -> None:
    entries = {
        "u": {"uniform": [-1, 2]},
        "l": {"loguniform": [1e-5, 1e-1]},
        "r": {"randint": [3, 5]},
        "c": {"choice": ["adam", {"family": "values", "values": ["sgd", "adam"], "milestones": [{"randint": [1, 9]}]}]},
        "f": [{"family": "linear", "init": {"uniform": [5, 6]}, "slope": 0}, 7],
    }
    hp = Space(entries).sample(seed, number)
    value = {name: sequence.at(0) for name, sequence in hp.items()}
    assert -1 <= value["u"] <= 2 and 1e-5 <= value["l"] <= 1e-1 and value["r"] in (3, 4, 5)
    assert value["c"] in ("adam", "sgd") and (5 <= value["f"] <= 6 or value["f"] == 7)


def test_samples_are_these_for_ever() -> None:
    """A replayed study must draw the same values on any Python. These numbers must never change."""
    entries = {"lr": {"loguniform": [1e-4, 1e-1]}, "bs": {"randint": [1, 1000]}, "opt": ["adam", "sgd", "lion"]}
    drawn = [[sequence.at(0) for sequence in Space(entries).sample(3, number).values()] for number in range(3)]
    assert [values[1:] for values in drawn] == GOLDEN
    assert [values[0] for values in drawn] == pytest.approx(GOLDEN_LR, rel=1e-12)


def test_a_sample_depends_on_no_other_number_and_no_other_name() -> None:
    lr, bs = {"uniform": [0, 1]}, {"uniform": [0, 1]}
    both = [Space({"lr": lr, "bs": bs}).sample(0, number) for number in range(20)]
    assert Space({"lr": lr}).sample(0, 13)["lr"] == both[13]["lr"]
    assert len({hp[name].at(0) for hp in both for name in hp}) == 40
    assert Space({"lr": lr}).sample(1, 13)["lr"] != both[13]["lr"]


def test_samples_cover_their_ends_evenly() -> None:
    space = Space({"r": {"randint": [1, 4]}})
    counts = [sum(space.sample(0, number)["r"].at(0) == value for number in range(800)) for value in (1, 2, 3, 4)]
    assert all(150 < count < 250 for count in counts)


def test_a_draw_that_is_no_sequence_is_drawn_again() -> None:
    milestones = [{"randint": [1, 30]}, {"randint": [10, 40]}]
    space = Space({"lr": {"family": "multistep", "init": 1, "milestones": milestones, "gamma": 0.1}})
    assert all(space.sample(0, number)["lr"].milestones[1] > 0 for number in range(100))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("bs == 64 or lr.family == 'multistep'", [[STEPPED, 64], [STEPPED, 128], [0.1, 64]]),
        ("not (bs == 64)", [[STEPPED, 128], [0.1, 128]]),
        ("lr == 0.1 and bs in [32, 64]", [[0.1, 64]]),
        ("lr.family != 'multistep' or lr.milestones[0] + 10 == lr.milestones[1] < 31 and bs // 64 % 2 == 0", None),
        ("lr.family == 'multistep' and lr.gamma * 10 <= 1 and 64 < bs <= -1 * -128", [[STEPPED, 128]]),
        ("\n  bs == 64\n  and lr == 0.1\n", [[0.1, 64]]),
        (lambda hp: hp["bs"].at(0) == 64 and hp["lr"].family == "constant", [[0.1, 64]]),
    ],
)
def test_where_filters_a_grid(where: Any, expected: Any) -> None:
    space = Space(MIXED, where)
    assert grid(space) == (expected or [[STEPPED, 128], [0.1, 64], [0.1, 128]])
    assert space.size() == len(grid(space))


def test_where_filters_samples_and_gives_up_in_the_end() -> None:
    space = Space({"a": {"uniform": [0, 1]}, "b": {"uniform": [0, 1]}}, "a < b")
    assert all(hp["a"].at(0) < hp["b"].at(0) for hp in (space.sample(0, number) for number in range(50)))  # type: ignore[operator]
    with pytest.raises(SpaceError, match="1000 were sampled, and where lets none of them through"):
        Space({"a": {"uniform": [0, 1]}}, "a > 2").sample(0, 0)


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("bs ==", "must be an expression such as"),
        ("", "must be an expression such as"),
        ("bs", "at column 1, must be true or false, got 64"),
        ("bs == 64 and lr > 1", "at column 14, this cannot be computed for a multistep and 1"),
        ("lr.gamma < 1", "at column 1, a constant has no field gamma: ask for the family first"),
        ("bs == 64 or batch == 3", "at column 13, batch is not a hyper-parameter: there are lr, bs"),
        ("lr.familly == 'x'", "at column 1, no family has a field familly; did you mean family?"),
        ("__import__('os').system('x') == 0", "only comparisons, and, or, not, arithmetic and fields are allowed"),
        ("lr.__class__ == 1", "no family has a field __class__"),
        ("(lambda: 1)() == 1", "are allowed, got (lambda: 1)()"),
        ("[x for x in [1]] == 1", "are allowed, got [x for x in [1]]"),
        ("f'{bs}' == '64'", "are allowed, got f'{bs}'"),
        ("(bs := 3) == 3", "are allowed"),
        (
            "bs ** 99 == 1",
            "at column 1, only comparisons, and, or, not, arithmetic and fields are allowed, got bs ** 99",
        ),
        ("'a' * 99 == 'a'", "at column 1, arithmetic needs numbers, got 'a'"),
        ("bs / 0 == 1", "at column 1, this cannot be computed for 64 and 0"),
        ("-" * 900 + "bs == 1", "must be simpler"),
        ("(" * 500 + "bs" + ")" * 500, "must be"),
        ("bs == 1 or " * 500 + "bs == 2", "must be at most 2000 characters long"),
        ("bs == '\0'", "must be"),
        (3, "must be an expression in a string, or a function in Python, got 3"),
    ],
)
def test_where_errors_name_the_place(where: Any, problem: str) -> None:
    with pytest.raises(WhereError) as caught:
        list(Space(MIXED, where).grid())
    assert caught.value.field == "where"
    assert problem in caught.value.problem


def test_where_reaches_into_nested_sequences() -> None:
    lr = parse({"family": "warmup", "steps": 5, "then": {"family": "cosine", "init": 0.1, "min": 0, "period": 9}})
    assert compile_where("lr.then.period == 9 and lr.steps < 6 and lr.then.family == 'cosine'", ["lr"])({"lr": lr})
    assert compile_where("flag and not off", ["flag", "off"])({"flag": Constant(True), "off": Constant(False)})


@pytest.mark.parametrize(
    ("entries", "field", "problem"),
    [
        ({}, "", "must map at least one hyper-parameter to its values, got {}"),
        ([], "", "must map at least one hyper-parameter to its values, got []"),
        ({3: 1}, "", "must name its hyper-parameters by strings"),
        ({"lr": []}, "lr", "must be a list of at least one option, got []"),
        ({"lr": {"choice": 3}}, "lr.choice", "must be a list of at least one option, got 3"),
        ({"lr": [0.1, [{"min": 1, "max": 2}, {"a": 1}]]}, "lr[1][1]", "must be a number, a string, true"),
        ({"lr": {"unifrom": [0, 1]}}, "lr", "got 'unifrom'; did you mean uniform?"),
        ({"lr": {"uniform": [0]}}, "lr.uniform", "must be [lowest, highest], two finite numbers, got [0]"),
        ({"lr": {"uniform": [0, float("inf")]}}, "lr.uniform", "two finite numbers"),
        ({"lr": {"randint": [0.5, 1]}}, "lr.randint", "must be [lowest, highest], two whole numbers, got [0.5, 1]"),
        ({"lr": [1, STEPPED | {"gamma": {"choice": [0.1, "x"]}}]}, "lr[1].gamma", "must be a finite number, got 'x'"),
        ({"lr": {"choice": [1, {"family": "lin"}]}}, "lr.choice[1].family", "did you mean linear?"),
        ({"lr": STEPPED | {"milestones": [{"randint": [20, 30]}, {"randint": [1, 9]}]}}, "lr.milestones", "must rise"),
    ],
)
def test_errors_name_the_field_and_say_what_would_be_right(entries: Any, field: str, problem: str) -> None:
    with pytest.raises(SequenceError) as caught:
        Space(entries)
    assert caught.value.field == field
    assert problem in caught.value.problem
