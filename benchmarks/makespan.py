"""How long studies take on real slots, and how long the simulator says that they will: one of every tuner.

    python benchmarks/makespan.py [--slots N] [--step SECONDS] [--only KIND ...] [--rounds N] [--dir FOLDER]

The embedded stack trains a toy whose steps only sleep and whose results follow from its hyper-parameters. Then the same
study is run on virtual slots, where each stage takes its time in that run; one that was not run there takes the mean
time of its steps. Slots and scheduler spend besides the mean of the run, too: from the assignment of a chain to its
beginning, from stage to stage, from a result to a look of the scheduler. Time counts from the first
chain that is assigned to the last stage that is completed. The budget is 5 %. All kinds take five minutes.

Each real run is compared with a simulation that has its durations, and nothing else of it: the simulated tuner decides
by itself. A tuner that goes by the order of results may decide otherwise than in the run, where two of them came within
one look of the scheduler; `otherwise` marks that. So do two real runs: one study of ASHA took 104, 120 and 120 steps,
and 18.5, 20.6 and 20.4 s. With `--rounds` each study is run several times, each time on a plan of its own, and the
median of the differences counts; how far the real runs are from each other is printed beside it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from app.domain import events as e
from app.domain.evolve import fold
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.events.log import StoredEvent
from app.scheduling.costs import Costs
from app.simulation.pace import Overheads
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

sys.path.insert(0, str(Path(__file__).parent / "data"))
from real_runs import Real, Span, completed, makespan, overheads, span_of, spans
from sleeper import pace, score

Json = dict[str, Any]
BUDGET = 0.05
DATA = Path(__file__).parent / "data"


DECAYS = [0.1, *({"family": "multistep", "init": 0.1, "milestones": [at], "gamma": 0.1} for at in (5, 9, 14))]
SPACE = {"x": {"uniform": [0.1, 1.0]}, "lr": DECAYS}
FEW = {"x": [0.2, 0.5, 0.9], "lr": DECAYS}
MANY: Json = {"num_trials": 12, "max_steps": 18}
HALVING: Json = {**MANY, "min_steps": 2, "reduction_factor": 3, "sampler": "random"}

STUDIES: dict[str, Json] = {
    "grid": {"space": FEW, "tuner": {"kind": "grid", "max_steps": 18}},
    "random": {"tuner": {"kind": "random", **MANY}},
    "sha": {"tuner": {"kind": "sha", "num_trials": 18, "min_steps": 2, "max_steps": 18, "reduction_factor": 3}},
    "asha": {"tuner": {"kind": "asha", **HALVING, "num_trials": 18}},
    "asha-stopping": {"tuner": {"kind": "asha", "type": "stopping", **HALVING, "num_trials": 18}},
    "hyperband": {"tuner": {"kind": "hyperband", "min_steps": 2, "max_steps": 18, "reduction_factor": 3}},
    "async_hyperband": {"tuner": {"kind": "async_hyperband", **HALVING}},
    "median": {"tuner": {"kind": "median", **MANY, "min_steps": 4, "interval": 4}},
    "bandit": {"tuner": {"kind": "bandit", **MANY, "interval": 4}},
    "early_term": {"tuner": {"kind": "early_term", **MANY, "boundary": 6}},
    "pop": {"tuner": {"kind": "pop", **MANY, "boundary": 6, "target": 0.9}},
    "pbt": {"tuner": {"kind": "pbt", "population_size": 6, "ready_steps": 5, "max_steps": 20}},
}


def spec(kind: str, step: float, number: int = 0) -> Json:
    """number: of the round, since no two share a plan."""
    tag = f"{kind} {number}"
    study = {"name": kind, "trainer": "sleeper", "trainer_args": {"seconds": step, "tag": tag}, "seed": 0}
    study |= {"metric": "score", "mode": "max", "space": SPACE, **STUDIES[kind]}
    if kind != "grid":
        study["tuner"] = {**study["tuner"], "sampling_seed": 1}
    return study


# ------------------------------------------------------------------------------------------------- what things cost


def x_of(node: Node) -> float:
    """The value of its one hyper-parameter that matters."""
    return float(node.segment.values(node.start)["x"])  # type: ignore[arg-type]


def seconds_per_step(log: Sequence[StoredEvent]) -> float:
    """The seconds of a step of pace 1, with what belongs to a stage besides."""
    nodes = fold([each.event for each in log]).nodes
    steps = sum((end - start) * pace(x_of(nodes[node])) for node, start, end in spans(log))
    return sum(each.seconds for each in completed(log)) / steps


# ---------------------------------------------------------------------------------------------------- virtual slots


def simulated(
    study: Json, name: str, slots: int, costs: Overheads, seconds_per_step: float, took: Mapping[Span, float]
) -> Simulator:
    """The study on virtual slots, run to its end."""

    def measure(node: Node, step: int) -> e.Metrics:
        return {"score": score(x_of(node), step)}

    def seconds(stage: e.Stage, number: int) -> float:
        usual = (stage.end - stage.start) * pace(x_of(simulator.plan.nodes[stage.node])) * seconds_per_step
        return took.get(span_of(stage), usual)

    simulator = Simulator(slots=slots, measure=measure, seconds=seconds, overheads=costs, make_costs=Costs)
    simulator.submit(StudyId(name), StudySpec.from_dict(study).to_json())
    simulator.run()
    return simulator


def steps_of(log: Sequence[StoredEvent]) -> int:
    """The steps that were run in completed stages."""
    chains = {each.event.chain: each.event for each in log if isinstance(each.event, e.ChainAssigned)}
    done = [
        chains[each.event.chain].stages[each.event.index] for each in log if isinstance(each.event, e.StageCompleted)
    ]
    return sum(stage.end - stage.start for stage in done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--step", type=float, default=0.5, help="seconds")
    parser.add_argument("--only", nargs="*", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--rounds", type=int, default=1, help="runs of each study")
    parser.add_argument("--dir", type=Path, help="where the log and the checkpoints are")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        real = Real(Path(folder), arguments.slots, DATA / "sleeper.py")
        try:
            real.run(spec("random", arguments.step / 10))  # everything that is slow the first time
            print(f"{'tuner':<16} {'real':>8} {'virtual':>8} {'off by':>8}   steps, chains: real, virtual")
            for kind in arguments.only:
                show(
                    kind,
                    [compare(real, arguments.slots, spec(kind, arguments.step, n)) for n in range(arguments.rounds)],
                )
        finally:
            real.close()


def compare(real: Real, slots: int, study: Json) -> tuple[float, float]:
    """The seconds of a study, and the predicted ones."""
    log = real.run(study)
    costs, took = overheads(log), dict(zip(spans(log), (each.seconds for each in completed(log)), strict=True))
    name = next(each.event.study for each in log if isinstance(each.event, e.StudySubmitted))
    virtual = simulated(study, name, slots, costs, seconds_per_step(log), took).log()
    seconds, expected = makespan(log), makespan(virtual)
    counts = "   ".join(f"{steps_of(each)}, {_count(each)}" for each in (log, virtual))
    mark = "" if asked(log) == asked(virtual) else "   otherwise"
    print(f"{study['name']:<16} {seconds:>7.2f}s {expected:>7.2f}s {expected / seconds - 1:>+8.1%}   {counts}{mark}")
    return seconds, expected


def show(kind: str, rounds: Sequence[tuple[float, float]]) -> None:
    """Whether the middle of the differences is within the budget, and how much real runs differ."""
    off = median(expected / seconds - 1 for seconds, expected in rounds)
    mark = "" if abs(off) <= BUDGET else "  over the budget"
    runs = [seconds for seconds, _ in rounds]
    spread = f"   real runs differ by {max(runs) / min(runs) - 1:.1%}" if len(runs) > 1 else ""
    print(f"{kind:<34} {off:>+8.1%}{mark}{spread}", flush=True)


def asked(log: Sequence[StoredEvent]) -> dict[int, int]:
    """The last requested step of each trial."""
    return {
        each.event.trial: each.event.steps for each in log if isinstance(each.event, e.TrialAdded | e.TrialExtended)
    }


def _count(log: Sequence[StoredEvent]) -> int:
    return sum(isinstance(each.event, e.ChainAssigned) for each in log)


if __name__ == "__main__":
    main()
