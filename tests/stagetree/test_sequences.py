import json
import math
from itertools import islice, pairwise, takewhile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stagetree.sequences import (
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    Form,
    Held,
    Linear,
    MultiStep,
    Part,
    Piecewise,
    Power,
    Sequence,
    SequenceError,
    Values,
    Warmup,
    Wsd,
    last_change,
    parse,
)
from tests.plans import max_examples
from tests.strategies import sequences

STEPS = 60


def naive(sequence: object, t: int) -> object:
    """The table of the guide, read line by line from the JSON, with no thought of pieces."""
    if not isinstance(sequence, dict):
        return sequence
    match sequence:
        case {"family": "constant", "value": value}:
            return value
        case {"family": "values", "values": values, "milestones": milestones}:
            return values[sum(m <= t for m in milestones)]
        case {"family": "multistep", "init": init, "milestones": milestones, "gamma": gamma}:
            return init * gamma ** sum(m <= t for m in milestones)
        case {"family": "linear", "init": init, "slope": slope}:
            return init + slope * t
        case {"family": "exponential", "init": init, "gamma": gamma}:
            return init * gamma**t
        case {"family": "cosine", "init": init, "min": low, "period": period, "gamma": gamma}:
            u = float(t)
            while u >= period:
                u, period = u - period, period * gamma
            return low + (init - low) * (1 + math.cos(math.pi * u / period)) / 2
        case {"family": "cyclic", "init": init, "max": high, "up": up, "down": down}:
            u = t % (up + down)
            return init + (high - init) * (u / up if u < up else (up + down - u) / down)
        case {"family": "polynomial", "init": init, "final": final, "steps": steps, "power": power}:
            return final + (init - final) * (1 - min(t, steps) / steps) ** power
        case {"family": "warmup", "steps": steps, "then": then, "start": start}:
            return start + (naive(then, 0) - start) * (t + 1) / steps if t < steps else naive(then, t - steps)
        case {"family": "wsd", "peak": peak, "warmup": warmup, "stable_until": until, "decay": decay}:
            if t < warmup:
                return peak * (t + 1) / warmup
            if t < until:
                return peak
            u = min((t - until) / decay, 1)
            down = {"linear": 1 - u, "cosine": (1 + math.cos(math.pi * u)) / 2, "sqrt": 1 - math.sqrt(u)}
            return sequence["final"] + (peak - sequence["final"]) * down[sequence["shape"]]
        case {"family": "inverse_sqrt" | "power", "peak": peak, "warmup": warmup, "decay": decay, "min": low}:
            if t < warmup:
                return peak * (t + 1) / warmup
            start, final = sequence["decay_start"], sequence["final"]
            then = t if start is None else min(t, start)
            curve = low + (peak - low) * ((then + 1) / warmup) ** sequence.get("exponent", -0.5)
            u = min((t - then) / decay, 1) if decay else 0
            down = {"linear": 1 - u, "cosine": (1 + math.cos(math.pi * u)) / 2, "sqrt": 1 - math.sqrt(u)}
            return final + (curve - final) * down[sequence["shape"]]
        case {"family": "one_cycle", "max": top, "up": up, "down": down, "init": init, "final": final}:
            first, last, u = (init, top, t / up) if t < up else (top, final, min((t - up) / down, 1))
            way = {"linear": u, "cosine": (1 - math.cos(math.pi * u)) / 2}
            return first + (last - first) * way[sequence["shape"]]
        case {"family": "piecewise", "parts": parts}:
            for part in parts:
                if t < part.get("steps", math.inf):
                    return naive(part["sequence"], t + part.get("skip", 0))
                t -= part["steps"]
    raise AssertionError(sequence)


@given(sequences())
def test_every_value_equals_the_table(sequence: Sequence) -> None:
    written = sequence.to_json()
    expected = [naive(written, t) for t in range(STEPS)]
    assert [sequence.at(t) for t in range(STEPS)] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(sequences(), st.integers(0, STEPS))
def test_take_is_at_for_each_step(sequence: Sequence, start: int) -> None:
    assert sequence.take(STEPS, start=start) == [sequence.at(t) for t in range(start, STEPS)]


def forms(sequence: Sequence, origin: int = 0) -> list[Form]:
    """The form in force at each step."""
    found: list[Form] = []
    for piece in takewhile(lambda piece: piece.start < STEPS + origin, sequence.pieces(origin)):
        found[piece.start - origin :] = [piece.form] * (STEPS + origin - piece.start)
    return found


@given(sequences())
def test_pieces_are_canonical(sequence: Sequence) -> None:
    pieces = list(islice(takewhile(lambda piece: piece.start < STEPS, sequence.pieces()), STEPS))
    assert pieces[0].start == 0
    assert all(before.start < after.start for before, after in pairwise(pieces))
    assert all(before.form.name != after.form.name for before, after in pairwise(pieces))
    assert all(isinstance(piece.form, Held) == piece.form.is_held for piece in pieces)


@given(sequences())
def test_pieces_hold_the_values(sequence: Sequence) -> None:
    assert [form.at(t) for t, form in enumerate(forms(sequence))] == sequence.take(STEPS)


@given(sequences(), st.integers(1, 1000))
def test_an_origin_moves_a_sequence_and_changes_nothing_else(sequence: Sequence, origin: int) -> None:
    moved = [form.at(origin + t) for t, form in enumerate(forms(sequence, origin))]
    assert moved == pytest.approx(sequence.take(STEPS), rel=1e-9, abs=1e-9)


@given(sequences())
def test_json_is_read_back(sequence: Sequence) -> None:
    read = parse(json.loads(json.dumps(sequence.to_json())))
    assert read == sequence
    assert [form.name for form in forms(read)] == [form.name for form in forms(sequence)]


@given(sequences())
@example(Wsd(0.05, 3, 8, 4, final=0.05))
@example(Warmup(4, Constant(0.1)))
@example(Piecewise([Part(Exponential(1.0, 0.5), 2000), Part(Constant(0.0))]))
@example(Piecewise([Part(Exponential(1.0, -0.5), 2000), Part(Constant(0.0))]))
def test_the_last_change_is_the_first_step_of_equal_values(sequence: Sequence) -> None:
    """The last step of a warm-up to the value that stays counted as a change."""
    if (step := last_change(sequence)) is not None:
        values = [repr(value) for value in sequence.take(step + 20)]
        assert len(set(values[step:])) == 1
        assert step == 0 or values[step - 1] != values[step]


@given(sequences(), sequences(), st.integers(0, 30))
def test_equal_values_for_long_enough_have_equal_names(one: Sequence, other: Sequence, steps: int) -> None:
    """What two sequences share, they share by name: here, up to the step at which the second part begins."""
    beginning = {"steps": steps + 1, "sequence": one.to_json()}
    a = forms(parse({"family": "piecewise", "parts": [beginning, {"sequence": one.to_json()}]}))
    b = forms(parse({"family": "piecewise", "parts": [beginning, {"sequence": other.to_json()}]}))
    assert [form.name for form in a[: steps + 1]] == [form.name for form in b[: steps + 1]]


@pytest.mark.parametrize(
    "written",
    [
        MultiStep(0.1, [20, 30], 0.1),
        Values([0.1, 0.2], [20]),
        Linear(0.1, 0),
        Exponential(0.1, 1),
        Piecewise([{"steps": 20, "sequence": 0.1}, {"sequence": 0.3}]),
        Warmup(0, Constant(0.1)),
        parse({"family": "cosine", "init": 0.1, "min": 0.1, "period": 7}),
        parse({"family": "cyclic", "init": 0.1, "max": 0.1, "up": 3, "down": 4}),
        parse({"family": "polynomial", "init": 0.1, "final": 0, "steps": 9, "power": 0}),
        parse({"family": "wsd", "peak": 0.1, "warmup": 0, "stable_until": 20, "decay": 5}),
    ],
)
def test_constant_sequences_equal_the_constant_in_any_notation(written: Sequence) -> None:
    assert next(written.pieces()) == next(Constant(0.1).pieces())
    assert {form.name for form in forms(written)[:20]} == {Held(0.1).name}


def olmo_power_lr(peak: float, current: int, t_max: int, warmup: int, decay: int, b: float) -> float:
    """`PowerLR` as OLMo-core's pull request 674 describes it; `current` is 1 in the first step."""
    if current <= warmup:
        return peak * current / warmup
    tail = t_max - decay
    power = peak * (min(current, tail) / warmup) ** b
    return power if current < tail else power * (t_max - current) / decay


@given(st.integers(1, 20), st.integers(0, 30), st.integers(1, 20), st.floats(-2, -0.01))
def test_power_is_that_of_olmo(warmup: int, between: int, decay: int, b: float) -> None:
    """There the last step of the decay has its final value, so it begins a step before the last `decay` ones."""
    t_max = warmup + between + decay + 1
    ours = Power(0.3, warmup, decay, t_max - decay - 1, exponent=b)
    theirs = [olmo_power_lr(0.3, t + 1, t_max, warmup, decay, b) for t in range(t_max)]
    assert ours.take(t_max) == pytest.approx(theirs, rel=1e-12)


@given(sequences(families=("inverse_sqrt",)))
def test_an_inverse_square_root_is_a_power(sequence: Sequence) -> None:
    fields = {name: value for name, value in sequence.to_json().items() if name != "family"}
    assert forms(Power(**fields, exponent=-0.5)) == forms(sequence)


def test_values_beyond_floats_are_infinite() -> None:
    assert Exponential(1, 10).at(400) == math.inf
    assert MultiStep(1, [1, 2], 1e300).at(2) == math.inf


def test_steps_count_from_zero() -> None:
    with pytest.raises(ValueError, match="steps count from 0, got -1"):
        Constant(1).at(-1)


MULTISTEP = {"family": "multistep", "init": 0.1, "milestones": [1, 2], "gamma": 0.1}
COSINE = {"family": "cosine", "init": 1, "min": 0, "period": 5}
WSD = {"family": "wsd", "peak": 1, "warmup": 2, "stable_until": 5, "decay": 3}


@pytest.mark.parametrize(
    ("written", "field", "problem"),
    [
        (math.nan, "", "must be a finite number, got nan"),
        ({"family": "constant", "value": [{}]}, "value[0]", "must be a number, a string, true, false or null, got"),
        ({"family": "multistepp"}, "family", "did you mean multistep?"),
        ({"family": ["x"]}, "family", "must be one of constant, values,"),
        ({}, "", "must be a distribution or a sequence, such as"),
        ({"type": "float", "low": 0, "high": 1, "log": True}, "", "distribution: write {loguniform: [low, high]}"),
        ({"uniform": [0, 1], "log": True}, "", "distribution: write {loguniform: [low, high]}"),
        ({"grid_search": [1, 2]}, "", "write the list alone, with the tuner grid"),
        (MULTISTEP | {"gama": 1}, "gama",
         "is not a field of multistep, which has init, milestones, gamma; did you mean"),
        ({"family": "linear", "init": 1}, "slope", "is missing: linear needs init, slope"),
        (MULTISTEP | {"init": "0.1"}, "init", "must be a finite number, got '0.1'"),
        (MULTISTEP | {"init": True}, "init", "must be a finite number, got True"),
        (MULTISTEP | {"init": 10**400}, "init", "must be a finite number"),
        (MULTISTEP | {"milestones": 3}, "milestones", "must be a list, got 3"),
        (MULTISTEP | {"milestones": [3, 2]}, "milestones", "must rise from one to the next, but 2 comes after 3"),
        (MULTISTEP | {"milestones": [2, 2]}, "milestones", "must rise from one to the next, but 2 comes after 2"),
        (MULTISTEP | {"milestones": [-1]}, "milestones[0]", "must be a whole number of steps, at least 0, got -1"),
        (MULTISTEP | {"milestones": [1.5]}, "milestones[0]", "must be a whole number of steps, at least 0, got 1.5"),
        ({"family": "values", "values": [1], "milestones": [1]}, "values",
         "must be one more than the 1 milestones, got 1"),
        ({"family": "values", "values": [{}], "milestones": []}, "values[0]", "must be a number, a string"),
        (COSINE | {"period": 1.5}, "period", "must be at least 2 steps, the first and one that differs, got 1.5"),
        (COSINE | {"gamma": 0.5}, "gamma", "must be at least 1, so that no period is shorter"),
        ({"family": "cyclic", "init": 0, "max": 1, "up": 0, "down": 1}, "up",
         "must be a whole number of steps, at least 1"),
        ({"family": "polynomial", "init": 1, "final": 0, "steps": 3, "power": -1}, "power",
         "must not be negative, got -1"),
        ({"family": "warmup", "steps": 2, "then": "high"}, "then", "must be a finite number, got 'high'"),
        ({"family": "warmup", "steps": 2, "then": MULTISTEP | {"gamma": None}}, "then.gamma",
         "must be a finite number"),
        (WSD | {"stable_until": 1}, "stable_until", "must not be before the end of the warm-up at 2"),
        (WSD | {"shape": "square"}, "shape", "must be one of linear, cosine, sqrt, got 'square'"),
        ({"family": "piecewise", "parts": []}, "parts", "must hold at least one part"),
        ({"family": "piecewise", "parts": [3]}, "parts[0]", 'must be {"steps": n, "sequence": s}'),
        ({"family": "piecewise", "parts": [{"sequence": 1, "steps": 2}]}, "parts[0].steps",
         "must be left out of the last"),
        ({"family": "piecewise", "parts": [{"sequence": 1}, {"sequence": 2}]}, "parts[0].steps",
         "must be a whole number of steps, at least 1, got None"),
        ({"family": "piecewise", "parts": [{"sequence": {"family": "x"}}]}, "parts[0].sequence.family",
         "must be one of"),
    ],
)  # fmt: skip
def test_errors_name_the_field_and_say_what_would_be_right(written: object, field: str, problem: str) -> None:
    with pytest.raises(SequenceError) as caught:
        parse(written, "lr")
    assert caught.value.field == (f"lr.{field}" if field else "lr")
    assert problem in caught.value.problem


def test_a_part_skips_a_whole_number_of_steps() -> None:
    with pytest.raises(SequenceError, match=r"parts\[0\]\.skip: must be a whole number of steps, at least 0, got -1"):
        Piecewise([Part(Constant(1), skip=-1)])


@given(sequences(), st.integers(0, 40), st.integers(0, 5))
@max_examples(200)
def test_a_part_that_skips_is_where_its_sequence_would_be(sequence: Sequence, skip: int, origin: int) -> None:
    """Families with many pieces go there without counting them all."""
    part = Piecewise([Part(sequence, skip=skip)])
    values = sequence.take(skip + 30, start=skip)
    assert [part.at(t) for t in range(30)] == values
    shifted = Piecewise([Part(Constant(0), steps=origin + 1), Part(sequence, skip=skip)])
    assert shifted.take(origin + 31, start=origin + 1) == values


@given(sequences(), st.integers(1, 30))
@max_examples(200)
def test_continued_parts_equal_the_whole(sequence: Sequence, cut: int) -> None:
    """Piece by piece, for any place of the cut: equal parts have equal names."""
    parts = Piecewise([Part(sequence, steps=cut), Part(sequence, skip=cut)])
    for whole, joined in zip(islice(sequence.pieces(), 50), parts.pieces(), strict=False):
        assert (whole.start, whole.form.name) == (joined.start, joined.form.name)


def test_a_late_step_is_computed_at_once() -> None:
    triangle, cosine = Cyclic(0, 1, 1, 2), Cosine(1, 0, 4)
    for sequence, period in ((triangle, 3), (cosine, 4)):
        part = Piecewise([Part(sequence, skip=period * 10**15)])
        assert part.take(20) == sequence.take(20)
    with pytest.raises(SequenceError, match="must pass over at most 20,000 periods"):
        Piecewise([Part(Cosine(1, 0, 2.5), skip=10**9)])
    with pytest.raises(SequenceError, match="at most 4503599627370496"):
        Cyclic(0, 1, 10**400, 1)
