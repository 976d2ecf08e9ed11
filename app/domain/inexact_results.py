"""Why results of a study may not be exact, in sentences: "2 stages resumed under another torch (2.13.0 after 2.12.0)".

Changed inputs count as well: see `app.domain.inputs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from app.domain import inputs
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import NodeId


def study_inexactness(plan: SearchPlan, study: Study) -> list[str]:
    """The reasons for all stages that its trials pass, whichever study they were trained for."""
    stages = _sentences(plan, study.max_step_by_node.items())
    return [*stages, *_equal_repeats(plan, study.trials), *inputs.input_warnings(plan, study)]


def trial_inexactness(plan: SearchPlan, trial: Trial) -> list[str]:
    """The reasons for the stages on its path."""
    return trial_inexactness_in(plan, plan.studies[trial.study])(trial)


def trial_inexactness_in(plan: SearchPlan, study: Study) -> Callable[[Trial], list[str]]:
    """A function that gives the reasons for each trial of a study."""
    warnings, is_noted = list(inputs.input_warnings(plan, study)), any(node.not_exact for node in plan.nodes.values())

    def reasons(trial: Trial) -> list[str]:
        stages = _sentences(plan, plan.sources(trial)) if is_noted else []
        return [*stages, *_equal_repeats(plan, [trial]), *warnings]

    return reasons


def _equal_repeats(plan: SearchPlan, trials: Iterable[Trial]) -> Iterator[str]:
    """A sentence if repeats do not differ although they should."""
    alike = [trial.number for trial in trials if len(trial.runs) > 1 and _has_equal_repeats(plan, trial)]
    if alike:
        number = f"{len(alike)} {'trial' if len(alike) == 1 else 'trials'}"
        yield f"the repeats of {number} have equal values, as if the trainer did not read data_seed"


def _has_equal_repeats(plan: SearchPlan, trial: Trial) -> bool:
    repeats = plan.metrics_by_run(trial, trial.steps)
    is_measured = all(value is not None for each in repeats for value in each.values())
    return len(repeats) > 1 and is_measured and all(each == repeats[0] for each in repeats)


def _sentences(plan: SearchPlan, ends: Iterable[tuple[NodeId, int]]) -> list[str]:
    counts = Counter(reason for name, end in ends for step, reason in plan.nodes[name].not_exact if step <= end)
    return [f"{count} {'stage' if count == 1 else 'stages'} {reason}" for reason, count in counts.items()]
