"""How soon a target is reached, by POP and by others, on recorded curves that are played again.

    python benchmarks/pop.py [--data FOLDER] [--parts 0] [--orders 25] [--slots 1 10 25] [--save FILE.jsonl]

Workloads: benchmarks/data/*.jsonl.gz, recorded with `stagetree export --curves`, and, in FOLDER, taskset_*.npz
(TaskSet, Metz et al. 2020): 100 of 1,000 curves, or several hundreds (--parts, from 0 to 9), the metric exp(-loss), a
minute a step. A curve ends where it is not a number.

As in HyperDrive (Rasley et al. 2017, §7): the target is what three in a hundred configurations reach at all, the
configurations come in random orders, the same for every policy, and time runs until some trial was evaluated at the
target, whether or not the policy saw it. The boundary is a twelfth of a trial, for `early_term` a quarter (10 and 30 of
the paper's 120 epochs). There is no kill threshold and no time limit. For `pop` and `early_term` every step is
evaluated. To leave a trial and take it up again later costs a tenth of a step (--switch).

`rank` is `pop` of which p ends no trial, so trials continue by the rank of their last value at its step alone. `pop
rank` orders opportunistic trials by their last value, also of different steps, as 0.1.0 did; `pop p` orders and pools
all by p from the first boundary on, as the paper does. `pop open` and `rank open` are not told the target: they aim at
the best value so far, and continue until all trials have ended, so there p is proven more often.
`bandit 0.1` is the bandit with epsilon 0.1 instead of 0.5.

The first table is of 5 slots: the distribution over orders (Figures 7 and 12c), in minutes. `sooner`: the median of the
policy, in medians of the first. `later`: in how many orders it was later than the first. `never`: in how many orders no
trial reached the target; they count as the longest. `over`: the median of when the study was over. The second is the
median for other numbers of slots (Figure 12b), over a fifth of the orders. The last is how reliable the p was that was
shown or acted on, and of `pop` also the p that was not: of the judgements with so high a p, the mean of p, and the part
that came true had the trial been trained to its end. Under it, the Brier scores of p, of the last value's verdict (it
has reached the target, or not), and of the part that came true as the p of all. At the end, of all workloads: the
geometric mean of `sooner`, its median, and in how many of all orders the policy was sooner than the first.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: studies are small

import argparse
import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.domain import events as e
from app.simulation.traces import Player, Trace, Workload, read

DATA = Path(__file__).parent / "data"
FIGURE_SLOTS = 5
TRIALS = 100
BOUNDS = {"max": [0, 1], "min": [0, None]}
COMPARED = ("pop", "rank", "early_term", "bandit", "bandit 0.1", "random", "asha", "hyperband")
OPEN = ("pop open", "rank open")
POLICIES = (
    *COMPARED,
    *OPEN,
    "pop rank",
    "pop p",
    "asha predicted",
    "asha hopeless",
    "random hopeless",
    "bandit hopeless",
)
EVALUATED = ("pop", "early_term")
STUDY_FIELDS = ("stop_hopeless",)
COLUMNS = ("min", "25 %", "median", "90 %", "max", "max-min", "sooner", "later", "never", "over")
Times = dict[str, list[float]]
"""The seconds to the target in each order, by policy."""
LEVELS = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder with taskset_*.npz")
    parser.add_argument("--orders", type=int, default=25, help="random orders of the configurations")
    parser.add_argument("--slots", type=int, nargs="*", default=[1, 10, 25], help="beside 5")
    parser.add_argument("--switch", type=float, default=0.1, help="to leave a trial and resume it, in steps")
    parser.add_argument("--policies", nargs="*", default=list(COMPARED), help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--only", nargs="*", default=[""], help="workloads with one of these in their name")
    parser.add_argument("--parts", type=int, nargs="*", default=[0], help="which hundreds of curves of each task")
    parser.add_argument(
        "--save", type=Path, help="append the seconds of each order to this file, for docs/box_plots.py"
    )
    arguments = parser.parse_args()
    found = []
    for workload in workloads(arguments.data, arguments.parts):
        if not any(name in workload.name for name in arguments.only):
            continue
        target = target_of(workload)
        print(f"\n{workload.name}: {len(workload.traces)} trials of {workload.max_steps} steps, target {target:.4g}")
        found.append(tables(workload, target, arguments))
    summary(found)


def workloads(folder: Path | None, parts: Sequence[int] = (0,)) -> Iterator[Workload]:
    for path in sorted(DATA.glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            yield read(lines)
    for path in sorted(folder.glob("taskset_*.npz") if folder else []):
        yield from (taskset(path, part) for part in parts)


def taskset(path: Path, part: int = 0) -> Workload:
    """A hundred curves of a task; another part, other ones."""
    losses = np.load(path)["valid_loss"].astype(float)
    chosen = np.random.default_rng(0).permutation(len(losses))[part * TRIALS : (part + 1) * TRIALS]
    traces = tuple(trace(np.exp(-losses[number, 1:])) for number in chosen)
    name = path.stem.removeprefix("taskset_") + (f", hundred {part}" if part else "")
    return Workload(name, "exp(-loss)", "max", losses.shape[1] - 1, traces)


def trace(values: np.ndarray) -> Trace:
    broken = np.flatnonzero(~np.isfinite(values))
    number = int(broken[0]) + 1 if len(broken) else len(values)
    recorded = tuple(float(value) if isfinite(value) else None for value in values[:number])
    return Trace({}, tuple(range(1, number + 1)), recorded, (60.0,) * number)


def target_of(workload: Workload) -> float:
    best = sorted((workload.best(trace) for trace in workload.traces), reverse=workload.mode == "max")
    return best[max(1, round(0.03 * len(best))) - 1]


def policies(workload: Workload, target: float) -> dict[str, dict[str, Any]]:
    most, number = workload.max_steps, len(workload.traces)
    boundary = max(1, most // 12)
    trials = {"num_trials": number, "max_steps": most}
    curves = {**trials, "bounds": BOUNDS[workload.mode]}
    return {
        "pop": {"kind": "pop", **curves, "target": target, "boundary": boundary},
        "rank": {"kind": "pop", **curves, "target": target, "boundary": boundary, "lower_bound": 0},
        "early_term": {"kind": "early_term", **curves, "boundary": most // 4},
        "bandit": {"kind": "bandit", **trials, "interval": boundary},
        "bandit 0.1": {"kind": "bandit", **trials, "interval": boundary, "epsilon": 0.1},
        "random": {"kind": "random", **trials},
        "asha": {"kind": "asha", **trials, "min_steps": boundary, "eta": 3},
        "hyperband": {"kind": "hyperband", "min_steps": boundary, "max_steps": most, "eta": 3},
    }


def all_policies(workload: Workload, target: float) -> dict[str, dict[str, Any]]:
    """And tuners that use curves where they were requested; `stop_hopeless` is the study's."""
    plain, bounds = policies(workload, target), BOUNDS[workload.mode]
    predicted = plain["asha"] | {"promote_by": "predicted", "bounds": bounds}
    hopeless = {"stop_hopeless": {"bounds": bounds}}
    return plain | {
        "pop rank": plain["pop"] | {"order_by": "rank"},
        "pop p": plain["pop"] | {"order_by": "p"},
        **{name: _drop_target(plain[name.removesuffix(" open")]) for name in OPEN},
        "asha predicted": predicted,
        **{f"{name} hopeless": plain[name] | hopeless for name in ("asha", "random", "bandit")},
    }


def _drop_target(tuner: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tuner.items() if name != "target"}


def tables(workload: Workload, target: float, arguments: argparse.Namespace) -> Times:
    """Print the tables of a workload; the seconds to the target of each policy in each order, with 5 slots."""
    every = {name: all_policies(workload, target)[name] for name in arguments.policies}
    print(f"{'':16}" + "".join(f"{name:>9}" for name in COLUMNS))
    found, foretold = Times(), dict[str, list[Foretold]]()
    for name in every:
        foretold[name], over = [], list[float]()
        asked = (workload, every[name], target, FIGURE_SLOTS, arguments.orders, arguments.switch)
        times = play(*asked, foretold=foretold[name], over=over)
        save(arguments.save, workload.name, name, FIGURE_SLOTS, times)
        found[name] = times
        print(row(name, times, next(iter(found.values()))) + f"{minutes(float(np.median(over))):>9}", flush=True)
    few = -(-arguments.orders // 5)
    print(f"{'slots':16}" + "".join(f"{slots:>9}" for slots in arguments.slots))
    for name, tuner in every.items():
        medians = []
        for slots in arguments.slots:
            times = play(workload, tuner, target, slots, few, arguments.switch)
            save(arguments.save, workload.name, name, slots, times)
            medians.append(np.median(times))
        print(f"{name:16}" + "".join(f"{minutes(median):>9}" for median in medians), flush=True)
    for name, judged in foretold.items():
        reliability(f"{name}, shown or acted on", [each for each in judged if each.acted_on])
        reliability(f"{name}, neither", [each for each in judged if not each.acted_on])
    return found


def summary(found: Sequence[Times]) -> None:
    """How much sooner the first policy is than each, over all workloads."""
    print(f"\n{'all workloads':16}{'mean':>9}{'median':>9}{'sooner':>9}")
    for name in found[0] if found else ():
        pairs = [(times[name], next(iter(times.values()))) for times in found]
        ratios = [np.median(times) / np.median(first) for times, first in pairs]
        sooner = sum(time < other for pair in pairs for time, other in zip(*pair, strict=True))
        orders = sum(len(times) for times, _ in pairs)
        mean = float(np.exp(np.mean(np.log(ratios))))
        print(f"{name:16}{shown(mean):>9}{shown(float(np.median(ratios))):>9}{f'{sooner} of {orders}':>12}")


def save(path: Path | None, workload: str, policy: str, slots: int, times: Sequence[float]) -> None:
    """Append a line with the seconds of each order; null where the target was never reached."""
    if path is not None:
        seconds = [round(time, 3) if isfinite(time) else None for time in times]
        with path.open("a") as lines:
            lines.write(json.dumps({"workload": workload, "policy": policy, "slots": slots, "seconds": seconds}) + "\n")


def play(
    workload: Workload,
    tuner: dict[str, Any],
    target: float,
    slots: int,
    orders: int,
    switch: float,
    *,
    foretold: list[Foretold] | None = None,
    over: list[float] | None = None,
) -> list[float]:
    """The seconds to the target in each order. Predictions until then are added to `foretold`, and that time
    to `over`: until all trials have ended, where the tuner does not know the target.
    """
    times = []
    for seed in range(orders):
        order = np.random.default_rng(seed).permutation(len(workload.traces))
        fields = {name: tuner[name] for name in STUDY_FIELDS if name in tuner}
        own = {name: value for name, value in tuner.items() if name not in fields}
        every = 1 if own["kind"] in EVALUATED or fields or "promote_by" in own else None
        seconds = switch * float(np.mean([trace.seconds[0] for trace in workload.traces]))
        player = Player(
            workload.select(map(int, order)),
            own,
            slots=slots,
            target=target,
            eval_every=every,
            switch=seconds,
            **fields,
        )
        if own["kind"] == "pop" and "target" not in own:
            player.simulator.run()
        times.append(player.time_to_target())
        if over is not None:
            over.append(player.simulator.now)
        if foretold is not None:
            foretold += judgements(
                workload.select(map(int, order)), own.get("order_by") == "p", player.simulator.events
            )
    return times


# ----------------------------------------------------------------------------------------------------- reliability


class Foretold(NamedTuple):
    """A p, whether a trial was ordered or ended by it, the verdict of the last value, and whether it came true."""

    p: float
    acted_on: bool
    is_there: bool
    came: bool


def judgements(workload: Workload, by_p: bool, events: Sequence[e.Event]) -> Iterator[Foretold]:
    """Predictions about trials, whose numbers are the places in the workload. A reclassification says nothing."""
    seen = set[tuple[int, int]]()
    for event in events:
        if not isinstance(event, e.TrialPrioritized | e.TrialStopped) or event.reason.get("p") is None:
            continue
        trace, reason = workload.traces[event.trial], event.reason
        if "delta" in reason:  # early_term and stop_hopeless ask about the end alone
            mark, step, wanted = reason["best_of_all"], 0, trace.steps[-1:]
        else:
            mark, step, wanted = reason["target"], int(reason["steps"]), trace.steps
            if (event.trial, step) in seen:
                continue
            seen.add((event.trial, step))
        came = any(workload.is_reached(trace.value(later), mark) for later in wanted if later > step)
        is_there = bool(step) and workload.is_reached(trace.value(step), mark)
        acted_on = by_p or isinstance(event, e.TrialStopped) or bool(reason.get("proven"))
        yield Foretold(float(reason["p"]), acted_on, is_there, came)


def reliability(title: str, judged: Sequence[Foretold]) -> None:
    if not judged:
        return
    print(f"{title}: {len(judged)} judgements")
    for least, beyond in itertools.pairwise(LEVELS):
        some = [each for each in judged if least <= each.p < beyond]
        if some:
            said, true = np.mean([each.p for each in some]), np.mean([each.came for each in some])
            print(f"  p from {least:4.2f} to {min(beyond, 1):4.2f}{len(some):>8}{said:>9.3f}{true:>9.3f}")
    came = np.array([each.came for each in judged], dtype=float)
    scores = [np.mean((np.array([getattr(each, name) for each in judged]) - came) ** 2) for name in ("p", "is_there")]
    print(f"  all{len(judged):>22}{np.mean([each.p for each in judged]):>9.3f}{came.mean():>9.3f}", end="")
    print(f"   Brier {scores[0]:.4f}, verdict {scores[1]:.4f}, base rate {came.var():.4f}", flush=True)


def row(name: str, times: Sequence[float], first: Sequence[float]) -> str:
    """The times of a policy, beside the times of the first one in the same orders."""
    shares = [float(np.quantile(times, share, method="lower")) for share in (0, 0.25, 0.5)]
    shares += [float(np.quantile(times, share, method="higher")) for share in (0.9, 1)]
    never = sum(not isfinite(time) for time in times)
    later = sum(time > other for time, other in zip(times, first, strict=True))
    spread, sooner = shares[4] - shares[0], np.median(times) / np.median(first)
    distribution = "".join(f"{minutes(each):>9}" for each in [*shares, spread])
    return f"{name:16}{distribution}{shown(sooner):>9}{later:>9}{never:>9}"


def minutes(seconds: float) -> str:
    return shown(seconds / 60)


def shown(number: float) -> str:
    return f"{number:.2f}" if isfinite(number) else "never"


if __name__ == "__main__":
    main()
