"""The frontier, kept up to date from event to event, against the stage tree's definition, after random histories."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis.stateful import invariant, run_state_machine_as_test

from app.domain.evolve import fold
from app.domain.outstanding_requests import evaluations, evaluations_by_part
from app.domain.search_plan import Chain, Trial
from app.domain.stage_tree import TreeStage, build_stage_tree
from app.domain.terms import StudyId
from app.scheduling.costs import Costs
from app.scheduling.frontier import MOST_ESTIMATES, Frontier, Span
from app.scheduling.placement import lead_trial
from tests.plans import Story, max_examples, missing, steps, urgencies, urgencies_of
from tests.scheduling.histories import Histories


def catch_up(frontier: Frontier) -> None:
    """Until new estimates have reached all nodes."""
    for _ in range(1 + len(frontier.plan.nodes) // MOST_ESTIMATES):
        frontier.begin_tick()
        frontier.refresh()


class History(Histories):
    """After each event."""

    @invariant()
    def the_frontier_is_the_stage_tree(self) -> None:
        stages = build_stage_tree(self.plan, self.frontier.progress)
        self.holds_each_missing_step_once(stages)
        self.is_the_frontier(stages)

    def holds_each_missing_step_once(self, stages: list[TreeStage]) -> None:
        covered = Counter((stage.node, step) for stage in stages for step in range(stage.start + 1, stage.end + 1))
        assert set(covered.values()) <= {1}
        assert covered.keys() == missing(self.plan, self.frontier.progress)
        begun = [(stage.node, stage.end) for stage in stages]
        for number, stage in enumerate(stages):
            assert stage.parent is None or begun.index(stage.parent) < number
            assert not (stage.ready and stage.parent)

    def is_the_frontier(self, stages: list[TreeStage]) -> None:
        catch_up(self.frontier)
        expected = urgencies_of(self.plan, self.costs, stages)
        heads = list(self.frontier.heads())
        assert len(heads) == len(set(heads))
        assert set(heads) == {head for places in expected.values() for head in places}
        assert set(self.frontier.studies()) == expected.keys()
        for study, places in expected.items():
            self.is_right_for(study, places, stages)
        best = {head: self.most_important(expected, head) for head in heads}
        for head, urgency in best.items():
            assert self.frontier.urgency(head) == pytest.approx(urgency)
        assert (self.frontier.most_urgent_head() is None) == (not heads)

    def is_right_for(self, study: StudyId, expected: dict[Any, Any], stages: list[TreeStage]) -> None:
        """What the frontier says of one study."""
        frontier, tree = self.frontier, {(stage.node, stage.start, stage.end) for stage in stages}
        follow = Counter(stage.parent for stage in stages)
        assert set(frontier.heads(study)) == expected.keys()
        for head, (_, seconds) in expected.items():
            path = frontier.path(head, study)
            self.is_a_way(path, seconds, tree)
            for span, children, evaluate in zip(
                path, frontier.children(path), evaluations_by_part(self.plan, path), strict=True
            ):
                is_part = span.end in self.plan.averages.get(span.node, {})  # it has several parents
                assert children == follow[span.node, span.end] or span.start == span.end or is_part
                assert evaluate == evaluations(self.plan, self.plan.nodes[span.node], span.start, span.end)
            assert lead_trial(self.plan, path[-1])[0] == study
        longest = frontier.most_urgent_head(study=study)
        assert longest is not None and expected[longest] == pytest.approx(max(expected.values()))
        second = frontier.most_urgent_head({longest}, study)
        others = {head: urgency for head, urgency in expected.items() if head != longest}
        assert (second is None) == (not others)
        assert second is None or others[second] == pytest.approx(max(others.values()))

    def most_important(self, expected: dict[Any, Any], head: Any) -> Any:
        rank = {study: self.plan.studies[study].spec.priority for study in expected}
        return max((rank[study], places[head][1]) for study, places in expected.items() if head in places)

    @invariant()
    def who_has_the_slots_is_what_their_chains_say(self) -> None:
        by_slot = dict[str, Chain]()
        for chain in self.plan.chains.values():
            if not chain.is_trained:
                by_slot.setdefault(chain.slot, chain)
        assert {chain.slot: chain.id for chain in self.plan.chains.leading()} == {
            slot: chain.id for slot, chain in by_slot.items()
        }
        used = Counter[StudyId]()
        for chain in by_slot.values():
            used[chain.payer] += chain.ranks
        assert self.plan.chains.slots_used == used

    @invariant()
    def studies_add_up(self) -> None:
        assert sum(study.executed for study in self.plan.studies.values()) == self.steps_run
        for study in self.plan.studies.values():
            assert study.active == sum(trial.state == "active" for trial in study.trials)
            assert study.unique <= study.requested
            for trial in study.trials:
                waits = {step for step in {*trial.requested_steps, *trial.unevaluated} if self.waits(trial, step)}
                assert bool(waits) == (trial.state == "active")
                assert trial.unevaluated <= waits, "only where the state is kept, or will be"
                assert all(self.is_kept(trial, step) for step in trial.unevaluated)

    def waits(self, trial: Trial, step: int) -> bool:
        return trial.key in self.plan.node_of(trial, step).waiting.get(step, ())

    def is_kept(self, trial: Trial, step: int) -> bool:
        node = self.plan.node_of(trial, step)
        return step in node.checkpoints or step in node.saving

    def is_a_way(self, path: list[Span], seconds: float, tree: set[Any]) -> None:
        """Stages of the tree, one after the other, that take at least this long."""
        for before, after in pairwise(path):
            assert before.end == after.start
        assert all((span.node, span.start, span.end) in tree for span in path)
        cost = self.costs.seconds_per_step
        took = sum((span.end - span.start) * cost(self.plan.nodes[span.node]) for span in path)
        averages = self.plan.averages.get(path[-1].node, {})
        assert took >= seconds - 1e-6 or path[-1].end in averages, "what follows an average is another chain's"

    def teardown(self) -> None:
        """After any history: the log is complete, can be cut anywhere, and without further faults everything ends."""
        self.story.drain(self.frontier)
        for study in self.plan.studies.values():
            assert study.state != "running" or study.active == 0
        assert not self.plan.chains
        self.plan.touched.clear()
        cut = len(self.story.events) // 2
        again = fold(self.story.events[cut:], fold(self.story.events[:cut]))
        again.touched.clear()
        assert again == self.plan


def test_two_slots_do_not_evaluate_the_same() -> None:
    story = Story()
    study = story.submit(({"h": 1}, 10))
    (node,) = story.path(study)
    story.keep(node.id, 10)
    frontier = Frontier(story.plan)
    frontier.refresh()
    assert story.take(frontier) is not None
    frontier.refresh()
    assert story.take(frontier) is None


def test_a_new_estimate_is_applied_in_parts() -> None:
    story, costs = Story(), Costs()
    study = story.submit(*(({"bs": number, "lr": steps(1, 2, milestones=[3])}, 10) for number in range(1, 400)))
    frontier = Frontier(story.plan, costs)
    frontier.refresh()
    story.train(story.assign((story.path(study)[0], 0, 3)), seconds=60.0)
    frontier.refresh()
    expected = {head: seconds for head, (_, seconds) in urgencies(story.plan, costs)[study].items()}
    found = {head: frontier.urgency(head)[1] for head in frontier.heads()}
    assert found.keys() == expected.keys()
    assert found != pytest.approx(expected)
    catch_up(frontier)
    assert {head: frontier.urgency(head)[1] for head in frontier.heads()} == pytest.approx(expected)


def test_a_tick_re_estimates_a_bounded_number_of_nodes() -> None:
    story, costs = Story(), Costs()
    study = story.submit(*(({"bs": number}, 10) for number in range(1, 100)))
    frontier = Frontier(story.plan, costs)
    frontier.refresh()
    before = {head: frontier.urgency(head) for head in frontier.heads()}
    frontier.begin_tick()
    story.train(story.assign((story.path(study)[0], 0, 10)), seconds=60.0)
    for _ in range(3):
        frontier.refresh()
    assert sum(frontier.urgency(head) != before[head] for head in frontier.heads()) == MOST_ESTIMATES


def test_the_frontier_is_the_stage_tree_after_any_history() -> None:
    run_state_machine_as_test(History, settings=max_examples(120, stateful_step_count=50))
