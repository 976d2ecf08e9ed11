"""How long studies take on real slots, and how long the simulator says that they will: one of every tuner.

    python benchmarks/makespan.py [--slots N] [--step SECONDS] [--only KIND ...] [--dir FOLDER]

The embedded stack trains a toy whose steps only sleep and whose results follow from its hyper-parameters. What its
slots have spent besides steps (to begin a chain, from stage to stage, to evaluate) is found by least squares over all
stages of the run; so is how long the scheduler takes to look, and from one chain that it gives out to the next: the
order of results hangs on that. Then the same study is run on virtual slots with these costs, and with each stage's own
time. Time counts from the first chain that is assigned to the last stage that is completed. The budget is 5 %.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.domain import commands as c
from app.domain import events as e
from app.domain.evolve import fold
from app.domain.ids import StudyId
from app.domain.search_plan import Node
from app.embedded import Embedded
from app.events.database import Database
from app.events.log import StoredEvent
from app.events.records import SqlRecords
from app.simulation.pace import Overheads
from app.simulation.simulator import Simulator
from stagetree.client import Client
from stagetree.spec import StudySpec

sys.path.insert(0, str(Path(__file__).parent / "data"))
from sleeper import pace, score

Json = dict[str, Any]
BUDGET = 0.05
PATIENCE = 300.0
DATA = Path(__file__).parent / "data"

PROMPT = 2.0
"""Seconds: a chain that is assigned so soon after its slot was free hardly waited for work."""

Place = tuple[str, int]
Span = tuple[str, int, int]


DECAYS = [0.1, *({"family": "multistep", "init": 0.1, "milestones": [at], "gamma": 0.1} for at in (5, 9, 14))]
SPACE = {"x": {"uniform": [0.1, 1.0]}, "lr": DECAYS}
FEW = {"x": [0.2, 0.5, 0.9], "lr": DECAYS}
MANY: Json = {"num_trials": 12, "max_steps": 18}

STUDIES: dict[str, Json] = {
    "grid": {"space": FEW, "tuner": {"kind": "grid", "max_steps": 18}},
    "random": {"tuner": {"kind": "random", **MANY}},
    "sha": {"tuner": {"kind": "sha", "num_trials": 18, "min_steps": 2, "max_steps": 18, "reduction_factor": 3}},
    "asha": {"tuner": {"kind": "asha", **MANY, "num_trials": 18, "min_steps": 2, "reduction_factor": 3}},
    "asha-stopping": {
        "tuner": {"kind": "asha", "type": "stopping", **MANY, "num_trials": 18, "min_steps": 2, "reduction_factor": 3}
    },
    "hyperband": {"tuner": {"kind": "hyperband", "min_steps": 2, "max_steps": 18, "reduction_factor": 3}},
    "async_hyperband": {"tuner": {"kind": "async_hyperband", **MANY, "min_steps": 2, "reduction_factor": 3}},
    "median": {"tuner": {"kind": "median", **MANY, "min_steps": 4, "interval": 4}},
    "bandit": {"tuner": {"kind": "bandit", **MANY, "interval": 4}},
    "early_term": {"tuner": {"kind": "early_term", **MANY, "boundary": 6}},
    "pop": {"tuner": {"kind": "pop", **MANY, "boundary": 6, "target": 0.9}},
    "pbt": {"tuner": {"kind": "pbt", "population_size": 6, "ready_steps": 5, "max_steps": 20}},
}


def spec(kind: str, step: float) -> Json:
    study = {"name": kind, "trainer": "sleeper", "trainer_args": {"seconds": step, "tag": kind}, "seed": 0}
    study |= {"metric": "score", "mode": "max", "space": SPACE, **STUDIES[kind]}
    if kind != "grid":
        study["tuner"] = {**study["tuner"], "sampling_seed": 1}
    return study


# ------------------------------------------------------------------------------------------------------- real slots


class Real:
    """An embedded stack, and what its log says."""

    def __init__(self, folder: Path, slots: int) -> None:
        self._stack = Embedded(folder, slots, [str(DATA / "sleeper.py")])
        self._stack.start(await_slots=True)
        self._records = SqlRecords(Database(self._stack.environment()["STAGETREE_DATABASE_URL"]))
        self._client = Client(self._stack.url)

    def run(self, study: Json) -> list[StoredEvent]:
        """All that happened on the plan of the study, which nobody else uses."""
        name = self._client.submit(study)["study"]
        deadline = time.monotonic() + PATIENCE
        while self._client.study(name, trials=False)["state"] not in ("completed", "failed", "cancelled"):
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} did not end within {PATIENCE:.0f} s")
            time.sleep(0.1)
        with self._records.read() as rows:
            found = rows.studies.find(name)
        assert found is not None
        return self._records.log.read(found.stream)

    def close(self) -> None:
        self._client.close()
        self._stack.stop()


def makespan(log: Sequence[StoredEvent]) -> float:
    """From the first chain that was assigned to the last stage that was completed."""
    begun = next(each.at for each in log if isinstance(each.event, e.ChainAssigned))
    return max(each.at for each in log if isinstance(each.event, e.StageCompleted)) - begun


# ------------------------------------------------------------------------------------------------- what things cost


def stages(log: Sequence[StoredEvent]) -> Iterator[tuple[list[float], float]]:
    """What each stage consists of, and the seconds from when it was assigned, or handed over, to its end.

    It consists of the beginning of a chain from nothing, from a checkpoint, or with the model in memory, or of a
    hand-over; and of so many steps and evaluations.
    """
    nodes = fold([each.event for each in log]).nodes
    chains: dict[str, e.ChainAssigned] = {}
    last: dict[str, tuple[float, Place]] = {}  # for each slot, when and where its last stage ended
    evaluations: Counter[str] = Counter()
    for each in log:
        match each.event:
            case e.ChainAssigned() as assigned:
                chains[assigned.chain] = assigned
            case e.Evaluated(node=node):
                evaluations[node] += 1
            case e.StageCompleted(chain=name, index=index):
                chain, stage = chains[name], chains[name].stages[index]
                before, place = last.get(chain.slot, (0.0, ("", 0)))
                last[chain.slot] = each.at, (stage.node, stage.end)
                places = {(stage.node, stage.start), (nodes[stage.node].parent, stage.start)}
                parts = _beginning(stage, index, is_resident=place in places)
                work = (stage.end - stage.start) * pace(x_of(nodes[stage.node]))
                parts += [work, evaluations.pop(stage.node, 0)]
                yield parts, each.at - (before if index else chain.at)


def reaction(log: Sequence[StoredEvent]) -> float:
    """How long a slot is free, usually, before it is given a chain where there is work."""
    slots = {each.event.chain: each.event.slot for each in log if isinstance(each.event, e.ChainAssigned)}
    free: dict[str, float] = {}
    gaps: list[float] = []
    for each in log:
        match each.event:
            case e.StageCompleted(chain=name):
                free[slots[name]] = each.at
            case e.ChainAssigned(slot=slot) if slot in free:
                gaps.append(each.at - free[slot])
    return float(np.median([gap for gap in gaps if gap < PROMPT] or [0.0]))


def spacing(log: Sequence[StoredEvent]) -> float:
    """How long after a chain the next one is given out, usually, where no result came in between."""
    gaps: list[float] = []
    last: float | None = None
    for each in log:
        match each.event:
            case e.ChainAssigned():
                gaps += [] if last is None else [each.at - last]
                last = each.at
            case e.StageCompleted() | e.Evaluated():
                last = None
    return float(np.median([gap for gap in gaps if gap < PROMPT] or [0.0]))


def x_of(node: Node) -> float:
    """The value of its one hyper-parameter that matters."""
    return float(node.segment.values(node.start)["x"])  # type: ignore[arg-type]


def _beginning(stage: e.Stage, index: int, *, is_resident: bool) -> list[float]:
    """One for the way in which it begins: from nothing, from a checkpoint, in memory, handed over."""
    way = 3 if index else 0 if stage.start == 0 else 2 if is_resident else 1
    return [float(number == way) for number in range(4)]


def fitted(log: Sequence[StoredEvent]) -> tuple[Overheads, float, dict[Span, float]]:
    """What slots have spent besides steps, on a step of pace 1, and on the steps of each stage that was run."""
    rows = list(stages(log))
    parts, seconds = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    ridge = 1e-3 * np.eye(parts.shape[1])  # what never occurred is taken to cost nothing
    found = np.linalg.lstsq(np.vstack([parts, ridge]), np.concatenate([seconds, np.zeros(len(ridge))]))[0]
    begin, load, resume, hand_over, per_step, evaluate = (max(0.0, float(each)) for each in found)
    besides = parts @ np.concatenate([found[:4], [0.0], found[5:]])
    own = {span: max(0.0, float(left)) for span, left in zip(spans(log), seconds - besides, strict=True)}
    costs = Overheads(
        begin=begin,
        load=load,
        resume=resume,
        hand_over=hand_over,
        evaluate=evaluate,
        upload=float(np.median(list(_uploads(log)))),
        look=reaction(log),
        give=spacing(log),
    )
    return costs, per_step, own


def spans(log: Sequence[StoredEvent]) -> list[Span]:
    """The stages that were completed, in their order."""
    chains = {each.event.chain: each.event for each in log if isinstance(each.event, e.ChainAssigned)}
    done = [each.event for each in log if isinstance(each.event, e.StageCompleted)]
    return [span_of(chains[each.chain].stages[each.index]) for each in done]


def span_of(stage: e.Stage) -> Span:
    return stage.node, stage.start, stage.end


def _uploads(log: Sequence[StoredEvent]) -> Iterator[float]:
    """How long after the end of a stage its checkpoint is on record."""
    ended: dict[Place, float] = {}
    chains = {each.event.chain: each.event for each in log if isinstance(each.event, e.ChainAssigned)}
    for each in log:
        match each.event:
            case e.StageCompleted(chain=name, index=index):
                stage = chains[name].stages[index]
                ended[stage.node, stage.end] = each.at
            case e.CheckpointKept(node=node, step=at) if (node, at) in ended:
                yield each.at - ended[node, at]


# ---------------------------------------------------------------------------------------------------- virtual slots


def simulated(
    study: Json, name: str, slots: int, costs: Overheads, per_step: float, own: Mapping[Span, float]
) -> Simulator:
    """The study on virtual slots, run to its end."""

    def measure(node: Node, step: int) -> e.Metrics:
        return {"score": score(x_of(node), step)}

    def seconds(stage: e.Stage, number: int) -> float:
        usual = (stage.end - stage.start) * pace(x_of(simulator.plan.nodes[stage.node])) * per_step
        return own.get(span_of(stage), usual)

    simulator = Simulator(slots=slots, measure=measure, seconds=seconds, overheads=costs)
    opened = e.PlanOpened(trainer="sleeper", trainer_version="", trainer_args={}, seed=0)
    body = StudySpec.from_dict(study).to_json()
    simulator.give(c.SubmitStudy(plan=opened, study=StudyId(name), spec=body, at=0.0))
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
    parser.add_argument("--dir", type=Path, help="where the log and the checkpoints are")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        real = Real(Path(folder), arguments.slots)
        try:
            compare(real, arguments.slots, arguments.step, arguments.only)
        finally:
            real.close()


def compare(real: Real, slots: int, step: float, kinds: Sequence[str]) -> None:
    """Print the table."""
    real.run(spec("random", step / 10))  # whatever is slow the first time
    print(f"{'tuner':<16} {'real':>8} {'virtual':>8} {'off by':>8}   steps, chains: real, virtual")
    for kind in kinds:
        study = spec(kind, step)
        log = real.run(study)
        costs, per_step, own = fitted(log)
        name = next(each.event.study for each in log if isinstance(each.event, e.StudySubmitted))
        virtual = simulated(study, name, slots, costs, per_step, own).log()
        took, expected = makespan(log), makespan(virtual)
        counts = [f"{steps_of(each)}, {_count(each)}" for each in (log, virtual)]
        off = expected / took - 1
        mark = "" if abs(off) <= BUDGET else "  over the budget"
        print(f"{kind:<16} {took:>7.2f}s {expected:>7.2f}s {off:>+8.1%}   {'   '.join(counts)}{mark}", flush=True)


def _count(log: Sequence[StoredEvent]) -> int:
    return sum(isinstance(each.event, e.ChainAssigned) for each in log)


if __name__ == "__main__":
    main()
