/** Layouts of random trees, scales, and painting on a recording canvas. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { axisNumber, durationText } from "../src/format.ts";
import { icicle, savedSteps } from "../src/layout/icicle.ts";
import { branchPoint, commonValues, trialCurve, isOnPath, nodePath, trialPath, rungTree, pathEnds, meanAndRepeatTrees } from "../src/layout/rung_tree.ts";
import { countHidden, hiddenText, logScale, logTicks, robustRange, robustLogRange, spansOrdersOfMagnitude, stepAt, stepScale, ticks, timeTicks } from "../src/layout/scales.ts";
import { drawEnds, drawLines, treeScales } from "../src/parts/rung_tree_painting.ts";
import { freeBoxes, labelCapacity, spreadPlaces } from "../src/layout/end_labels.ts";
import { paintPlot } from "../src/parts/plot_painting.ts";
import { lineRows } from "../src/parts/plot_lines.ts";
import { SvgContext } from "../src/parts/svg_context.ts";
import type { Tree } from "../src/types.ts";
import { randomTree, seededRandom } from "./trees.ts";

const SEEDS = Array.from({ length: 60 }, (_, seed) => seed);

for (const seed of SEEDS) {
  const tree = randomTree(seed);

  test(`rung tree ${seed}: each measurement is on a line with the right number of trials`, () => {
    const { segments, ends } = rungTree(tree);
    tree.nodes.steps.forEach((measured, node) => {
      measured.forEach((step, index) => {
        const value = tree.nodes.values[node]![index]!;
        const passing = tree.trials.steps.filter((until, trial) => until >= step && trialPath(tree, trial).includes(node) && leaves(trial, node) >= step).length;
        const found = segments.find((each) => each.node === node && each.x1 === step && each.y1 === value);
        assert.equal(found?.trials ?? 0, passing);
      });
    });
    tree.trials.node.forEach((_, trial) => {
      const path = segments.filter((each) => isOnPath(pathEnds(tree, [trial]), each));
      assert.ok(path.every((each) => each.x1 <= tree.trials.steps[trial]! && leaves(trial, each.node) >= each.x1));
    });
    for (const end of ends) assert.ok(end.step <= tree.trials.steps[end.trial]!);
    for (const each of segments) assert.ok(each.x0 <= each.x1 && each.trials > 0);
    for (const each of segments) {
      const way = nodePath(tree, each.node);
      const ends = way.map((_, index) => (index ? tree.nodes.start[way[index - 1]!]! : each.x0));
      const isMeasured = way.some((node, index) => tree.nodes.steps[node]!.some((step) => step <= ends[index]!));
      assert.equal(each.isEstimate, !isMeasured, "segments are estimates only before the first measurement");
    }
  });

  test(`rung tree ${seed}: a line is straight between two measurements, also where trials leave it`, () => {
    const { segments } = rungTree(tree);
    tree.nodes.steps.forEach((measured, node) => {
      const values = tree.nodes.values[node]!;
      measured.slice(1).forEach((to, index) => {
        const [from, rise] = [measured[index]!, values[index + 1]! - values[index]!];
        for (const each of segments.filter((each) => each.node === node && each.x0 >= from && each.x1 <= to)) {
          const expected = values[index]! + (rise * (each.x1 - from)) / (to - from);
          assert.ok(Math.abs(each.y1 - expected) < 1e-9);
        }
      });
    });
  });

  test(`rung tree ${seed}: a branch begins at a step that its trial has trained`, () => {
    const trials = tree.trials.node.map((_, trial) => trial);
    for (const { node, x0, x1 } of rungTree(tree).segments) {
      for (let step = Math.ceil(x0); step <= x1; step += 1) {
        const point = branchPoint(tree, trials, node, step)!;
        assert.equal(point.at, Math.max(1, step));
        assert.ok(trialPath(tree, point.trial).includes(node) && leaves(point.trial, node) >= point.at);
      }
    }
    assert.equal(branchPoint(tree, [], 0, 1), null);
  });

  test(`icicle ${seed}: bars cover each step of each trial once`, () => {
    const { bars, height } = icicle(tree, -1);
    assert.equal(height, tree.trials.node.length);
    const area = bars.reduce((sum, bar) => sum + (bar.x1 - bar.x0) * (bar.y1 - bar.y0), 0);
    assert.equal(area, tree.trials.steps.reduce((sum, each) => sum + each, 0));
    const unique = tree.nodes.end.reduce((sum, end, node) => sum + end - tree.nodes.start[node]!, 0);
    assert.equal(bars.reduce((sum, bar) => sum + savedSteps(tree, bar), 0), area - unique);
    bars.forEach((bar, index) => bars.slice(index + 1).forEach((other) => assert.ok(bar.x1 <= other.x0 || other.x1 <= bar.x0 || bar.y1 <= other.y0 || other.y1 <= bar.y0)));
  });

  test(`colours ${seed}: a node has the common value of its trials`, () => {
    const values = tree.trials.node.map((_, trial) => (trial % 3 ? "a" : "b"));
    commonValues(tree, values).forEach((value, node) => {
      const passing = new Set(values.filter((_, trial) => trialPath(tree, trial).includes(node)));
      assert.equal(value, passing.size === 1 ? [...passing][0] : undefined);
    });
  });

  function leaves(trial: number, node: number): number {
    const path = trialPath(tree, trial);
    const next = path[path.indexOf(node) - 1];
    return next === undefined ? tree.trials.steps[trial]! : tree.nodes.start[next]!;
  }
}

test("values over orders of magnitude have a logarithmic scale with round ticks", () => {
  assert.ok(spansOrdersOfMagnitude([0.001, 5]) && !spansOrdersOfMagnitude([0.5, 5]) && !spansOrdersOfMagnitude([-1, 1000]));
  assert.deepEqual(logTicks([0.004, 30], 5), [0.01, 0.1, 1, 10]);
  assert.deepEqual(logTicks([0.09, 2.1], 5), [0.1, 0.2, 0.5, 1, 2]);
  const scale = logScale([1, 100], [0, 10]);
  assert.deepEqual([1, 10, 100].map((value) => Math.round(scale(value) * 1000) / 1000), [0, 5, 10]);
});

test("one outlier does not flatten the range", () => {
  const values = [...Array.from({ length: 30 }, (_, index) => 0.9 + index / 1000), 0.1];
  const [low, high] = robustRange(values);
  assert.ok(low > 0.85 && high < 1);
  assert.ok(robustRange(values, true)[0] < 0.1);
});

test("the best trial is always in the range", () => {
  const values = [...Array.from({ length: 200 }, (_, index) => 1 + index / 200), 0.01, 50];
  for (const range of [robustRange, robustLogRange]) {
    const [low, high] = range(values, false, "min");
    assert.ok(low <= 0.01 && high < 10, `${range.name} ${low} ${high}`);
    assert.ok(range(values, false, "max")[1] >= 50);
  }
});

test("values beyond the frame leave it, and are counted", () => {
  const frame = { domain: [1, 2] as [number, number], most: 8, isLog: false, isLogY: false };
  const [, y] = treeScales(frame, { width: 600, height: 300 });
  assert.equal(new Set([2.95, 2.4, 2.1].map(y)).size, 3, "they were one horizontal line at the edge");
  assert.deepEqual(countHidden([2.95, 2.4, 1.5, 0.5], [1, 2]), { above: 2, below: 1 });
  assert.deepEqual([hiddenText(2, "above"), hiddenText(1, "below"), hiddenText(0, "above")], ["↑ 2 points above", "↓ 1 point below", ""]);
});

test("large numbers are short on an axis", () => {
  assert.deepEqual([0.25, 10_000, 1e6, 2.5e11, -1e5].map(axisNumber), ["0.25", "10,000", "1e6", "2.5e11", "−1e5"]);
});

test("scales map their ends, and ticks are round", () => {
  const scale = stepScale(32, [0, 100], true);
  assert.deepEqual([scale(0), scale(32)], [0, 100]);
  assert.deepEqual(ticks([0, 1], 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  assert.deepEqual(ticks([3, 3], 5), [3]);
  assert.deepEqual(timeTicks([2.5, 31], 6), [5, 10, 15, 20, 25, 30]);
  assert.deepEqual(timeTicks([0.4, 1.6], 7), [0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.6]);
  assert.deepEqual([0, 0.5, 59.96, 61].map(durationText), ["0:00", "0:00.5", "1:00", "1:01"]);
  assert.deepEqual(timeTicks([0, 7200], 4), [0, 1800, 3600, 5400, 7200]);
});

/** A canvas context that records its calls. */
function canvas(): { context: CanvasRenderingContext2D; calls: [string, ...unknown[]][] } {
  const calls: [string, ...unknown[]][] = [];
  const context = new Proxy({}, { get: (_, name) => (...given: unknown[]) => (calls.push([String(name), ...given]), 0), set: () => true });
  return { context: context as CanvasRenderingContext2D, calls };
}

test("the star of the best trial is at its result, and its end further on", () => {
  const end = { trial: 2, step: 14, value: 0.98, state: "running", node: 0 };
  const marks = { x: Number, y: Number, ink: {}, marked: [], colours: null, states: [], most: 1, best: { trial: 2, step: 8, value: 0.99, text: "0.99" } };
  const texts = (step: number) => {
    const { context, calls } = canvas();
    drawEnds(context, [{ ...end, step }], marks as unknown as Parameters<typeof drawEnds>[2]);
    return calls.filter(([name]) => name === "fillText").map(([, text, x]) => [text, x]);
  };
  assert.deepEqual(texts(14), [["◐", 14], ["trial 2: 0.99", 8 - 12], ["★", 8]]);
  assert.deepEqual(texts(8), [["trial 2: 0.99", 8 - 12], ["★", 8]]);
});

test("among many trials only the path of the best has a line before its first measurement", () => {
  const segment = { node: 0, x0: 0, y0: 1, x1: 1, y1: 1, trials: 1, isEstimate: true };
  const drawn = (all: number, bestPath: Map<number, number>) => {
    const { context, calls } = canvas();
    const lines = { x: Number, y: Number, ink: {}, colours: null, markedPath: new Map(), bestPath, all, thickest: 1 };
    drawLines(context, [segment], lines as unknown as Parameters<typeof drawLines>[2]);
    return calls.filter(([name]) => name === "stroke").length;
  };
  assert.deepEqual([drawn(100, new Map()), drawn(1000, new Map()), drawn(1000, new Map([[0, 1]]))], [1, 0, 1]);
});

/** One trial of two repeats, which branch at step 4. */
const REPEATED = {
  count: 3,
  nodes: {
    id: ["trunk", "first", "second"],
    parent: [-1, 0, 0],
    start: [0, 4, 4],
    end: [4, 8, 8],
    trained: [4, 8, 8],
    trials: [1, 1, 1],
    running: [[], [], []],
    checkpoints: [[], [], []],
    steps: [[4], [8], [6, 8]],
    values: [[0.5], [0.1], [0.4, 0.3]],
    means: [[[4, 0.5, 0]], [[8, 0.2, 0.14]], []],
  },
  forms: [],
  trials: { node: [1], steps: [8], state: ["completed"], average_of: [[]], repeats: [[2]] },
} as Tree;

test("the mean of repeats is drawn with its deviation, and each repeat by itself", () => {
  const { means, repeats } = meanAndRepeatTrees(REPEATED);
  const { segments, ends } = rungTree(means);
  assert.deepEqual(ends, [{ trial: 0, step: 8, value: 0.2, state: "completed", node: 1, deviation: 0.14 }]);
  assert.deepEqual(segments.map((each) => [each.node, each.x1, each.y1, each.trials]), [[0, 4, 0.5, 1], [1, 8, 0.2, 1]]);
  const single = rungTree(repeats!).segments.map((each) => [each.node, each.x1, each.y1]);
  assert.deepEqual(single, [[0, 4, 0.5], [1, 8, 0.1], [2, 6, 0.4], [2, 8, 0.3]]);
  assert.equal(meanAndRepeatTrees(randomTree(1)).repeats, null);
});

test("the curve of a trial with repeats is the mean curve", () => {
  assert.deepEqual(trialCurve(meanAndRepeatTrees(REPEATED).means, 0), { x: [4, 8], y: [0.5, 0.2] });
});

test("in the icicle each repeat has a row, and shared steps are one bar", () => {
  const { bars, height } = icicle(meanAndRepeatTrees(REPEATED).repeats!, -1);
  assert.equal(height, 2);
  assert.deepEqual(bars.map((bar) => [bar.node, bar.x0, bar.x1, bar.trials]).sort(), [[0, 0, 4, 2], [1, 4, 8, 1], [2, 4, 8, 1]]);
});

test("names at the ends of lines do not overlap, and keep their order", () => {
  for (const seed of SEEDS) {
    const random = seededRandom(seed);
    const places = Array.from({ length: 1 + Math.floor(random() * 20) }, () => random() * 400);
    const found = spreadPlaces(places, 13, [0, 400]);
    const order = places.map((_, index) => index).sort((a, b) => places[a]! - places[b]!);
    order.slice(1).forEach((index, before) => assert.ok(found[index]! - found[order[before]!]! >= 13 - 1e-9));
    for (const place of found) assert.ok(place >= -1e-9 && place <= 400 + 1e-9);
  }
  assert.deepEqual(spreadPlaces([50, 10], 13, [0, 400]), [50, 10]);
  assert.equal(labelCapacity(13, [0, 26]), 3);
  assert.deepEqual(freeBoxes([{ x: 0, y: 0, width: 40 }, { x: 30, y: 5, width: 40 }, { x: 30, y: 20, width: 40 }, { x: 50, y: 0, width: 9 }], 13), [true, false, true, true]);
});

const PLOT = { lines: [{ label: "trial 1", colour: "#123", x: [1, 4], y: [0.5, 0.25] }, { label: "a < b & c", colour: "#456", x: [1, 2], y: [3, 0.1] }], xLabel: "step", yLabel: "loss", range: [0, 1] as [number, number] };

test("a plot is saved as SVG with its axes, names and clipped lines", () => {
  const context = new SvgContext({ width: 600, height: 300 }, "#fff");
  paintPlot(context.asCanvas, { width: 600, height: 300 }, { paper: "#fff", soft: "#888", line: "#ddd", warm: "#850" } as never, PLOT);
  for (const part of ["step", "loss", "trial 1", "a &lt; b &amp; c", "↑ 1 point above", "clip-path"]) assert.ok(context.text.includes(part), part);
  assert.ok(context.text.startsWith("<svg ") && !context.text.includes("NaN") && !context.text.includes("undefined"));
});

test("the data of a plot are its points", () => {
  assert.deepEqual(lineRows(PLOT).slice(0, 3), [["line", "step", "loss"], ["trial 1", 1, 0.5], ["trial 1", 4, 0.25]]);
});

test("what is drawn on a canvas is written as SVG", () => {
  const context = new SvgContext({ width: 10, height: 10 }, "#fff");
  const drawing = context.asCanvas;
  drawing.fillStyle = "red";
  drawing.globalAlpha = 0.5;
  drawing.save();
  drawing.globalAlpha = 1;
  drawing.beginPath();
  drawing.arc(5, 5, 2, 0, 7);
  drawing.fill();
  drawing.restore();
  drawing.fillRect(0, 0, 1, 1);
  drawing.fillText("", 0, 0);
  assert.ok(context.text.includes('<path d="M3 5a2 2 0 1 0 4 0a2 2 0 1 0 -4 0" fill="red"/>'));
  assert.ok(context.text.includes('<rect x="0" y="0" width="1" height="1" fill="red" opacity="0.5"/>'));
  assert.ok(!context.text.includes("<text"));
});

test("a place in pixels is the step that is drawn there", () => {
  for (const isLog of [false, true]) {
    const range: [number, number] = [52, 900];
    for (const step of [0, 1, 7, 81]) assert.ok(Math.abs(stepAt(81, range, isLog)(stepScale(81, range, isLog)(step)) - step) < 1e-9);
  }
});
