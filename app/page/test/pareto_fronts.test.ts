/** The Pareto front and its border, and averages in both trees. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { bestRows } from "../src/layout/filter.ts";
import { frontDots, staircase } from "../src/layout/pareto_front.ts";
import { averageMarks } from "../src/layout/icicle.ts";
import { rungTree } from "../src/layout/rung_tree.ts";
import { Table } from "../src/table.ts";
import type { Columns, Tree } from "../src/types.ts";

const TABLE = new Table({
  count: 6,
  columns: {
    "metrics.loss": [3, 1, 2, 4, 1, null],
    "metrics.memory": [1, 3, 2, 4, 1, null],
    front: [true, true, true, false, false, null],
    violation: [0, 0, 0, 0, 0.5, null],
  },
} as unknown as Columns);

test("each trial with a result is a dot, and an infeasible trial is not on the front", () => {
  const kinds = frontDots(TABLE, "loss", "memory").map((dot) => dot.kind);
  assert.deepEqual(kinds, ["front", "front", "front", "dominated", "infeasible"]);
});

test("the runners-up exclude trunks of cooldowns and infeasible trials", () => {
  const columns = { value: [0.5, 0.1, 0.3, 0.2, null, 0.4], cooldown_of: [null, null, 1, null, null, null], violation: [0, 0, 0, 0.5, null, 0] };
  const table = new Table({ count: 6, columns } as unknown as Columns);
  assert.deepEqual(bestRows(table, "min"), [2, 5, 0]);
  assert.deepEqual(bestRows(table, "max"), [0, 5, 2]);
});

test("the runners-up exclude trials that are ranked by means of their states", () => {
  const table = new Table({ count: 4, columns: { value: [0.1, 0.2, 0.3, 0.4], merge_of: [null, null, 0, 1] } } as unknown as Columns);
  assert.deepEqual(bestRows(table, "min"), [2, 3]);
});

test("the border connects neighbours of the front by lines parallel to the axes", () => {
  const edge = staircase(frontDots(TABLE, "loss", "memory"), true, true);
  assert.deepEqual(edge, [[1, 3], [2, 3], [2, 2], [3, 2], [3, 1]]);
  const turned = staircase(frontDots(TABLE, "loss", "memory"), false, false);
  assert.deepEqual(turned, [...edge.filter((_, index) => index % 2 === 0)].reverse().flatMap(([x, y], index, all) => (index ? [[x, all[index - 1]![1]], [x, y]] : [[x, y]])));
});

/** Two trials, and a third that continues from the mean of their states at steps 4 and 6 to step 9. */
const TREE = {
  count: 4,
  nodes: {
    id: ["a", "b", "mean", "on"],
    parent: [-1, -1, -1, 2],
    start: [0, 0, 6, 6],
    end: [4, 6, 6, 9],
    trained: [4, 6, 6, 9],
    trials: [1, 1, 1, 1],
    running: [[], [], [], []],
    checkpoints: [[], [], [], []],
    steps: [[4], [6], [6], [9]],
    values: [[0.4], [0.6], [0.3], [0.2]],
  },
  forms: [],
  trials: { node: [0, 1, 3], steps: [4, 6, 9], state: ["completed", "completed", "completed"], average_of: [[], [], [[1, 6], [0, 4]]] },
} as unknown as Tree;

test("an average is a node with links from several states", () => {
  assert.deepEqual(averageMarks(TREE, TREE), [{ step: 6, y0: 2, y1: 3, trials: [0, 1] }]);
  assert.deepEqual(rungTree(TREE).links, [
    { trial: 2, x0: 6, y0: 0.6, x1: 6, y1: 0.3 },
    { trial: 2, x0: 4, y0: 0.4, x1: 6, y1: 0.3 },
  ]);
});
