"""The changes of rows that go on record together with a slot's facts, and prove that it may state them."""

from __future__ import annotations

from app.events.log import Alongside
from app.events.rows.ports import RowsPort
from app.workers.slot import quarantine
from app.workers.slot.claim import Claim
from app.workers.slot.owner import describe
from app.workers.slot.parts import Parts


class Proofs:
    """Of one chain."""

    def __init__(self, claim: Claim, parts: Parts) -> None:
        self._claim, self._parts = claim, parts

    def moved_on(self, place: tuple[str, str, int], coming: int, is_last: bool) -> Alongside:
        """A stage was completed. place: where the model is; coming: the number of the next stage, if there is one."""
        chain, fence = self._claim.chain, self._claim.fence
        plan, node, step = place

        def advance(rows: RowsPort) -> None:
            if is_last:
                rows.chains.release(chain, fence, {"plan": plan, "node": node, "step": step})
            else:
                rows.chains.advance(chain, fence, coming)

        return advance

    def given_back(self, sentence: quarantine.Sentence | None) -> Alongside:
        """The scheduler learns in the same transaction what this slot has, and does not give it the same again."""
        me, versions, note = self._parts.me, self._parts.host.versions, self._parts.notes.text

        def over(rows: RowsPort) -> None:
            self.over(rows)
            describe(rows, me, versions, note)

        return over if sentence is None else sentence.added_to(over)

    def finish(self, rows: RowsPort) -> None:
        """All is trained and saved."""
        rows.chains.finish(self._claim.chain, self._claim.fence)

    def over(self, rows: RowsPort) -> None:
        """It has ended before its end."""
        rows.chains.end(self._claim.chain, self._claim.fence)
