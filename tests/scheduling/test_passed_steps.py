"""What stages under way will pass: the index over all of them says what the node says, looking at each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.domain.search_plan import ChainProgress, Node
from app.domain.terms import ChainId, NodeId
from app.scheduling.demands import Coverage

STEPS = st.integers(0, 12)
SPANS = st.lists(st.tuples(STEPS, STEPS).map(lambda ends: (min(ends), max(ends))), max_size=5)
PROGRESS = st.dictionaries(
    st.integers(0, 4), st.builds(ChainProgress, STEPS, st.frozensets(STEPS, max_size=3)), max_size=5
)


@given(SPANS, PROGRESS)
def test_the_index_covers_the_steps_of_the_node(spans: list[tuple[int, int]], known: dict[int, ChainProgress]) -> None:
    node = Node(NodeId("n"), None, 0, {})
    node.running = {(ChainId(str(number)), 0): span for number, span in enumerate(spans)}
    progress = {ChainId(str(number)): each for number, each in known.items()}
    reach = Coverage(node, progress)
    assert [reach.covers(step) for step in range(14)] == [node.covers(step, progress) for step in range(14)]
