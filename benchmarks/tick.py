"""What one thing that happens costs, by the number of trials: `python benchmarks/tick.py`.

A stage ends: its facts are folded, the frontier is brought up to date, the longest path is found and given to the slot.
Measured in studies of different shapes, in seconds of the thread; the refits of the cost estimate, which come each time
that twice as many stages were run, are shown apart. The garbage collector is set as in the scheduler's process. The
budget is 20 ms, flat to 100,000 trials.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.evolve import evolve
from app.domain.ids import ChainId, StudyId
from app.domain.search_plan import Chain, SearchPlan
from app.scheduling.chains import stages_of
from app.scheduling.costs import Costs
from app.scheduling.frontier import Frontier
from app.scheduling.policies import critical_path
from app.workers.gc_tuning import collect_young, freeze_survivors

STUDY = StudyId("study")
Trial = tuple[dict[str, Any], int]


def values(values: list[Any], milestones: list[int]) -> dict[str, Any]:
    return {"family": "values", "values": values, "milestones": milestones}


def one_trunk(trials: int) -> Iterator[Trial]:
    """All branch at one place."""
    return (({"lr": values([0.1, 1 + number], [100])}, 110) for number in range(trials))


def many_branch_points(trials: int) -> Iterator[Trial]:
    """One node has a thousand branch points."""
    return (
        ({"lr": values([0.1, 1 + number // 1000], [1 + number % 1000])}, 10 + number % 1000) for number in range(trials)
    )


def many_roots(trials: int) -> Iterator[Trial]:
    """Nothing is shared."""
    return (({"lr": 1 + number}, 10) for number in range(trials))


def deep_chains(trials: int) -> Iterator[Trial]:
    """Every trial has forty nodes, of which it shares the first twenty with nine others."""
    for number in range(trials):
        family, member = divmod(number, 10)
        parts = [family * 100 + part + (part >= 20) * (member + 1) / 100 for part in range(40)]
        yield {"lr": values(parts, list(range(5, 200, 5)))}, 200


def grid(trials: int) -> Iterator[Trial]:
    """A multistep with ten rates, milestones and factors, crossed with batch sizes that double somewhere."""
    for number in range(trials):
        rate, first, gamma, doubles = number % 10, number // 10 % 10, number // 100 % 10, number // 1000
        lr = {"family": "multistep", "init": 0.01 * (rate + 1), "milestones": [20 + first], "gamma": 0.1 * (gamma + 1)}
        yield {"lr": lr, "bs": values([64, 128], [10 + doubles])}, 100


SHAPES: list[Callable[[int], Iterator[Trial]]] = [one_trunk, many_branch_points, many_roots, deep_chains, grid]


class Timed(Costs):
    """Costs that remember whether they were fitted anew."""

    fitted = False

    def refit(self, plan: SearchPlan) -> bool:
        fits = super().refit(plan)
        self.fitted |= fits
        return fits


def measure(trials: Iterator[Trial], slots: int, stages: int) -> tuple[list[float], list[float]]:
    """Milliseconds of this thread for each thing that happened: without and with a refit."""
    plan, costs = SearchPlan(), Timed()
    opened = e.PlanOpened(trainer="digits", trainer_version="", trainer_args={}, seed=0)
    spec = {"metric": "accuracy", "eval_every": 50}
    actions = tuple(c.Start(hp=hp, steps=steps) for hp, steps in trials)
    give(plan, c.SubmitStudy(plan=opened, study=STUDY, spec=spec, at=0.0))
    give(plan, c.ApplyTunerActions(study=STUDY, actions=actions))
    frontier = Frontier(plan, costs)
    frontier.refresh()
    took: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    for number in range(stages):
        costs.fitted, before = False, time.thread_time()
        happen(plan, slots, number, frontier)
        collect_young()
        took[costs.fitted].append((time.thread_time() - before) * 1e3)
    return took


def give(plan: SearchPlan, command: c.Command) -> None:
    for event in decide(plan, command):
        evolve(plan, event)


def happen(plan: SearchPlan, slots: int, number: int, frontier: Frontier) -> None:
    """The oldest chain's stage ends if there is nothing else to do; a free slot is given the longest path."""
    if len(plan.chains) == slots or (plan.chains and frontier.longest() is None):
        end_stage(plan, next(iter(plan.chains.values())))
    frontier.refresh()
    for chain in plan.chains.values():
        frontier.marks(chain)
    if len(plan.chains) < slots and (choice := critical_path([frontier])):
        stages = stages_of(plan, choice[1])
        give(plan, c.AssignChain(chain=ChainId(str(number)), slot="gpu0", stages=stages, at=0.0))
        frontier.refresh()


def end_stage(plan: SearchPlan, chain: Chain) -> None:
    stage = chain.stages[chain.index]
    for step in stage.evaluate:
        evolve(plan, e.Evaluated(node=stage.node, step=step, metrics={"accuracy": 0.5}))
    evolve(plan, e.StageCompleted(chain=chain.id, index=chain.index, seconds=float(stage.end - stage.start)))
    evolve(plan, e.CheckpointKept(node=stage.node, step=stage.end, key="key", sha256="", size=1))
    if chain.is_trained:
        evolve(plan, e.ChainEnded(chain=chain.id, outcome="done"))
    else:
        plan.chains[chain.id] = plan.chains.pop(chain.id)  # the others' turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--stages", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8)
    arguments = parser.parse_args()
    freeze_survivors()
    print(f"{'ms for one thing that happened':<32} trials   median      p99      max   longest refit")
    for shape in SHAPES:
        for trials in arguments.trials:
            plain, refits = measure(shape(trials), arguments.slots, arguments.stages)
            plain.sort()
            row = (statistics.median(plain), plain[int(len(plain) * 0.99)], plain[-1], max(refits, default=0.0))
            print(f"{shape.__name__.replace('_', ' '):<31} {trials:>7}" + " ".join(f"{one:8.2f}" for one in row))


if __name__ == "__main__":
    main()
