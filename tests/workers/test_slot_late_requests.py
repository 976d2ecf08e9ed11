"""A request for a step that a running trunk has passed: another slot begins at once, also if none was expected."""

from __future__ import annotations

from cluster import Cluster
from studies import spec
from toys import switch

TRUNK = spec(({}, 20))


def deliver_to(cluster: Cluster, slot: str) -> int:
    """Hand over the slot's messages; their number."""
    for number in range(1000):
        waiting = [message for message in cluster.messages if message[2] == slot]
        if not waiting:
            cluster.settle()
            return number
        cluster.messages.remove(waiting[0])
        cluster.messages.appendleft(waiting[0])
        cluster.deliver()
    raise AssertionError("the messages do not come to an end")


def test_what_was_passed_is_begun_by_the_other_slot_while_the_trunk_goes_on(pair: Cluster) -> None:
    trunk, found = pair.submit(TRUNK), list[str]()

    def ask() -> None:
        """At step 10, of which the slot's row tells."""
        pair.beat()
        late = pair.submit(spec(({"lr": switch(0.1, 0.2, 4)}, 7)))
        pair.ticker.tick()
        assert deliver_to(pair, "gpu1") > 0
        pair.ticker.tick()
        found.append(pair.study(late).state)
        assert pair.study(trunk).state == "running"

    pair.at("train", 10, ask)
    assert pair.run(trunk).state == "completed"
    assert found == ["completed"]
    assert pair.study(trunk).executed == 20


def test_the_row_says_at_which_stage_its_worker_is(pair: Cluster) -> None:
    """A trunk of three stages: steps that were passed in the last of them are not waited for either."""
    trunk, found = pair.submit(spec(({"lr": switch(0.1, 0.2, 2)}, 3), ({"lr": switch(0.1, 0.2, 2)}, 20))), list[str]()

    def ask() -> None:
        """At step 10, in the third stage."""
        pair.settle()
        pair.beat()
        assert [row.index for row in pair.live()] == [2]
        pair.submit(spec(({"lr": switch(0.1, 0.2, 2)}, 7)))
        pair.ticker.tick()
        assert deliver_to(pair, "gpu1") > 0
        found.append("served")

    pair.at("train", 10, ask)
    assert pair.run(trunk).state == "completed"
    assert found == ["served"]
