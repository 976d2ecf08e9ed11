/** The time left, as the header of a running study shows it. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { TimeLeft } from "../src/layout/time_left.ts";

test("an estimate that halves for a moment changes the time left by little", () => {
  const left = new TimeLeft();
  assert.equal(left.next(100, 0), 100);
  const shown = left.next(50, 1)!;
  assert.ok(shown > 95 && shown < 99);
});

test("a better estimate is taken over in minutes", () => {
  const left = new TimeLeft();
  left.next(1000, 0);
  for (let now = 1; now <= 180; now += 1) left.next(400 - now, now);
  assert.ok(Math.abs(left.next(219, 181)! - 219) < 5);
});

test("while there is no estimate, the last one counts down", () => {
  const left = new TimeLeft();
  assert.equal(left.next(null, 0), null);
  left.next(10, 1);
  assert.equal(left.next(null, 4), 7);
  assert.equal(left.next(null, 40), 0);
});
