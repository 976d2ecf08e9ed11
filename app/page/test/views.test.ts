/** Routes, filters, tables, ladders, timelines and texts of views. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { isConstant } from "../src/layout/sparkline.ts";
import { lastMoment } from "../src/types.ts";
import { pageRange } from "../src/layout/event_pages.ts";
import { duration, number, share, footnoteSigns } from "../src/format.ts";
import { formatCsv, filterRows, sortRows } from "../src/layout/filter.ts";
import { ladderEdges, MAX_FULL_ROWS, ladderRows, type Row } from "../src/layout/ladder.ts";
import { createAxis, resultAxis, brushedRows, formatBrushes, parseBrushes } from "../src/layout/parallel.ts";
import { loggedLines } from "../src/parts/logged_lines.ts";
import { basisText, defaultRung, rungNames, tunerFields } from "../src/layout/rungs.ts";
import { reasonText, eventText, servedText } from "../src/layout/sentences.ts";
import { configurationText } from "../src/layout/configuration.ts";
import { timeAxis, busyShare, chromeTrace, laneNames, axisPosition } from "../src/layout/timeline.ts";
import { currentRoute, formatRoute, parseRoute } from "../src/route.ts";
import { Table } from "../src/table.ts";
import type { LoggedEvent, RankedRung, Rungs, Timeline } from "../src/types.ts";

const table = new Table({
  count: 4,
  columns: { trial: [0, 1, 2, 3], state: ["running", "completed", "failed", "completed"], value: [null, 0.5, null, 0.7], "hp.lr": [0.1, 0.2, 0.1, 0.4], standing: ["trains", "stayed, at rung 1", "", 'a "b"'] },
});

test("routes survive formatting and parsing", () => {
  const path = ["studies", "a b/c", "trials"];
  const query = { q: "lr<0.1 state:running", at: "12" };
  assert.deepEqual(parseRoute(formatRoute(path, query)), { path, query });
  assert.equal(formatRoute([], { at: "" }), "#/");
});

test("a numeric axis is ordered by value", () => {
  const ticks = createAxis("hp.lr", [0.01, 0.003, 0.001, 0.01], String).ticks.map((tick) => tick.text);
  assert.deepEqual(ticks, ["0.001", "0.003", "0.01"]);
});

test("each varying hyper-parameter has one column, of schedules if it has any", () => {
  const columns = { "hp.bs.family": ["values", null], "hp.bs": [null, 64], "shape.bs": ["64 → 128", "64"], "hp.lr.bias": [0.1, 0.2], "hp.wd": [1, 1] };
  const found = new Table({ count: 2, columns });
  assert.deepEqual(found.parameters, ["shape.bs", "hp.lr.bias"]);
  assert.equal(found.scheduleColumn("hp.bs.family"), "shape.bs");
  assert.equal(found.scheduleColumn("hp.lr.bias"), undefined);
});

test("schedules of one family that differ in few numbers have a column for each number", () => {
  const shared = { "hp.lr.family": ["wsd", "wsd"], "hp.lr.peak": [0.1, 0.1], "shape.lr": ["0.1 → 0", "0.1 → 0"] };
  assert.deepEqual(new Table({ count: 2, columns: { ...shared, "hp.lr.decay": [10, 20] } }).parameters, ["hp.lr.decay"]);
  assert.deepEqual(new Table({ count: 2, columns: { ...shared, "hp.lr.shape": ["sqrt", "linear"] } }).parameters, ["shape.lr"]);
  const many = { "hp.lr.a": [1, 2], "hp.lr.b": [1, 2], "hp.lr.c": [1, 2], "hp.lr.d": [1, 2] };
  assert.deepEqual(new Table({ count: 2, columns: { ...shared, ...many } }).parameters, ["shape.lr"]);
});

test("stable_until has no column if the decay ends with the trial", () => {
  const fields = { "hp.lr.family": ["wsd", "wsd", "wsd"], "hp.lr.peak": [0.1, 0.1, 0.2], "hp.lr.decay": [10, 20, 10], "shape.lr": ["a", "a", "b"] };
  const columns = (until: number[], steps: number[]) => new Table({ count: 3, columns: { ...fields, steps, "hp.lr.stable_until": until } }).parameters;
  assert.deepEqual(columns([30, 20, 30], [50, 50, 50]), ["hp.lr.peak", "hp.lr.decay"]);
  assert.deepEqual(columns([30, 60, 30], [40, 80, 40]), ["hp.lr.peak", "hp.lr.decay"]);
  assert.deepEqual(columns([30, 20, 25], [40, 40, 40]), ["hp.lr.peak", "hp.lr.decay", "hp.lr.stable_until"]);
});

test("results are shown at the default rung of the server, and rung names have their number of trials", () => {
  const rung = (number: number, steps: number, ...values: (number | null)[]) => ({ rung: number, steps, values });
  const at = (telling: number | null, ...items: object[]) => ({ items, telling }) as Rungs;
  assert.equal(defaultRung(at(1)), "1");
  assert.equal(defaultRung(at(null)), "end");
  assert.equal(defaultRung(null), "end");
  const names = rungNames(at(0, rung(1, 30, 0.5), rung(0, 10, 0.5, null, 0.4), rung(0, 20, 0.1))).map(({ name }) => name);
  assert.deepEqual(names, ["rung 0: step 10, 20, 3 trials", "rung 1: step 30, 1 trial"]);
});

test("plots of results name the number of trials", () => {
  assert.equal(basisText([0.5, null, 0.4], "1"), "Results at rung 1: 2 of 3 trials.");
  assert.equal(basisText([0.5], "end"), "Results at each trial's end: 1 of 1 trial.");
});

test("the fields of a tuner depend on its kind", () => {
  assert.deepEqual(tunerFields("median").slice(0, 2), ["tuner.min_steps", "tuner.min_trials"]);
  assert.deepEqual(tunerFields("asha").slice(0, 2), ["tuner.reduction_factor", "tuner.min_steps"]);
});

test("each footnote text has its own sign", () => {
  const signs = footnoteSigns(["unchecked: one", "", null, "unchecked: two", "unchecked: one", undefined]);
  assert.deepEqual([...signs], [["unchecked: one", "*"], ["unchecked: two", "†"]]);
  const many = [...footnoteSigns([..."abcdefg"]).values()];
  assert.equal(new Set(many).size, 7);
  assert.equal(many[5], "**");
});

test("the winner at the last rung has no decision", () => {
  const rung = { bracket: 0, rung: 0, steps: 10, entered: 3, trials: [1, 2, 3], values: [0.9, 0.5, null], promoted: [1] } as RankedRung;
  const decisions = (rows: Row[]) => rows.flatMap((row) => (row.kind === "trial" ? [row.decision] : []));
  assert.deepEqual(decisions(ladderRows(rung, [])), ["promoted", "not promoted", ""]);
  assert.deepEqual(decisions(ladderRows({ ...rung, trials: [1], values: [0.9], promoted: [] }, [], true)), [""]);
});

test("only 1 is 100 %, and only 0 is 0 %", () => {
  assert.deepEqual([0, 0.001, 0.54, 0.9996, 1, null].map(share), ["0 %", "1 %", "54 %", "99 %", "100 %", "–"]);
});

test('a constant among schedules has the family "constant"', () => {
  const mixed = new Table({ count: 3, columns: { "hp.lr": [0.1, null, null], "hp.lr.family": [null, "cosine", "cosine"], "hp.lr.init": [null, 0.2, 0.2] } });
  assert.deepEqual(mixed.column("hp.lr.family"), ["constant", "cosine", "cosine"]);
  assert.deepEqual(mixed.varyingParameters, ["hp.lr.family"]);
});

test("filters: all conditions must hold", () => {
  assert.deepEqual(filterRows(table, ""), [0, 1, 2, 3]);
  assert.deepEqual(filterRows(table, "state:completed lr>=0.3"), [3]);
  assert.deepEqual(filterRows(table, "state:running,failed"), [0, 2]);
  assert.deepEqual(filterRows(table, "rung"), [1]);
  assert.deepEqual(filterRows(table, "lr!=0.1 value<0.6"), [1]);
  assert.deepEqual(filterRows(table, "nothing>1"), []);
});

test("rows without a value come last in both directions", () => {
  assert.deepEqual(sortRows(table, [0, 1, 2, 3], "value", false), [1, 3, 0, 2]);
  assert.deepEqual(sortRows(table, [0, 1, 2, 3], "value", true), [3, 1, 0, 2]);
  const failed = new Table({ count: 3, columns: { state: ["failed", "completed", "completed"], value: [0.1, 0.3, 0.2] } });
  assert.deepEqual(sortRows(failed, [0, 1, 2], "value", false), [2, 1, 0]);
  assert.deepEqual(sortRows(failed, [0, 1, 2], "value", true), [1, 2, 0]);
});

test("CSV quotes special characters", () => {
  assert.equal(formatCsv(table, [3], ["trial", "value", "standing"]), 'trial,value,standing\r\n3,0.7,"a ""b"""\r\n');
});

test("a ladder shows rows around the cut, counts hidden rows, and has edges to the next rung", () => {
  const trials = Array.from({ length: 1000 }, (_, trial) => trial);
  const rung = { bracket: 0, rung: 0, steps: 1, entered: 1000, trials, values: trials, promoted: trials.slice(0, 500) };
  const rows = ladderRows(rung, [999]);
  const hidden = rows.reduce((sum, row) => sum + (row.kind === "more" ? row.hidden : 0), 0);
  const shown = rows.filter((row) => row.kind === "trial");
  assert.equal(hidden + shown.length, 1000);
  assert.ok(shown.length <= MAX_FULL_ROWS + 1);
  const cut = rows.findIndex((row) => row.kind === "cut");
  const [above, below] = [rows[cut - 1], rows[cut + 1]];
  assert.ok(above?.kind === "trial" && above.isPromoted && below?.kind === "trial" && !below.isPromoted);
  assert.equal(ladderEdges([rows, ladderRows({ ...rung, rung: 1, trials: [7], values: [1], promoted: [] }, [])]).length, 1);
});

const timeline: Timeline = {
  count: 3,
  at: 200,
  spans: {
    slot: ["gpu10", "gpu2", "gpu2"],
    members: [["gpu3"], [], []],
    node: ["a", "b", "c"],
    start: [0, 0, 4],
    end: [4, 4, 8],
    own: [true, true, false],
    begun: [1, 2, 5],
    ended: [3, 4, null],
    begun_at: [100, 100, 190],
    ended_at: [110, 104, null],
    outcome: ["done", "done", "running"],
    proof: [null, null, null],
  },
  marks: { position: [3], at: [110], kind: ["evaluated"], span: [0], step: [4] },
};

test("idle times are a small gap, unless they are shown", () => {
  const short = timeAxis(timeline, true);
  assert.ok(short.length < 25);
  assert.equal(timeAxis(timeline, false).length, 100);
  assert.ok(axisPosition(short, 150) <= axisPosition(short, 190));
  assert.equal(axisPosition(short, 100), 0);
});

test("lanes are in numeric order, and have a busy share", () => {
  assert.deepEqual(laneNames(timeline), ["gpu2", "gpu3", "gpu10"]);
  assert.deepEqual([busyShare(timeline, "gpu10"), busyShare(timeline, "gpu3")], [0.1, 0.1]);
});

test("a trace has each span in microseconds, for each of its slots", () => {
  const { traceEvents } = JSON.parse(chromeTrace(timeline, "s")) as { traceEvents: { ph: string; ts?: number; dur?: number }[] };
  const spans = traceEvents.filter((event) => event.ph === "X");
  assert.deepEqual(spans.map((span) => [span.ts, span.dur]), [[0, 10e6], [0, 10e6], [0, 4e6], [90e6, 10e6]]);
});

test("axes of parallel coordinates: linear, logarithmic, or by kind", () => {
  const wide = createAxis("hp.lr", [1e-4, 1e-3, 1e-2, 1e-1, 1], String);
  assert.deepEqual(wide.positions.map((each) => Math.round(each * 100)), [0, 25, 50, 75, 100]);
  assert.deepEqual(createAxis("hp.kind", ["b", "a", null], String).positions, [1, 0, Number.NaN]);
  assert.deepEqual(brushedRows([wide], { "hp.lr": [0.4, 1] }, 5), [2, 3, 4]);
  const brushes = { "hp.lr.init": [0.25, 0.5] as [number, number] };
  assert.deepEqual(parseBrushes(formatBrushes(brushes)), brushes);
});

test("values that are uniform near 0 have a linear axis", () => {
  const uniform = Array.from({ length: 200 }, (_, index) => (index + 0.5) / 200);
  const orders = uniform.map((value) => 10 ** (-4 * value));
  assert.ok(Math.abs(createAxis("hp.p", uniform, String).positions[100]! - 0.5) < 0.01);
  assert.ok(Math.abs(createAxis("hp.p", orders, String).positions[100]! - 0.5) < 0.01);
});

test("texts of events and reasons", () => {
  const event = { position: 1, version: 1, at: 0, type: "TrialStopped", data: { study: "s", trial: 3, reason: { rung: 1, rank: 7, of: 12, cut: 3 } } };
  assert.equal(eventText(event as unknown as LoggedEvent), "trial 3 is pruned (rung 1: rank 7 of 12, the best 3 are promoted)");
  assert.equal(eventText({ ...event, type: "TrialExtended", data: { ...event.data, steps: 8 } } as unknown as LoggedEvent), "trial 3 continues to step 8 (rung 0: rank 7 of 12, the best 3 are promoted)");
  assert.equal(reasonText({ rank: 7, of: 12, cut: 3, drawn_among: 9 }), "rank 7 of 12, drawn among 9 equal results, the best 3 are promoted");
  assert.equal(eventText({ ...event, type: "SomethingNew" } as unknown as LoggedEvent), "SomethingNew");
  assert.equal(reasonText({}), "");
  const assigned = (members: string[]) => eventText({ ...event, type: "ChainAssigned", data: { slot: "cpu0", members, stages: [{ start: 0, end: 4 }] } } as unknown as LoggedEvent);
  assert.deepEqual([assigned([]), assigned(["cpu1"])], ["cpu0 was assigned a stage of 4 steps", "cpu0 and cpu1 were assigned a stage of 4 steps"]);
  const median = { best: 0.9, median: 0.8 };
  assert.deepEqual([reasonText(median), reasonText(median, true)], ["its best 0.9 is worse than the median 0.8", "its best 0.9 is no worse than the median 0.8"]);
});

test("a stage trains trials, or verifies them", () => {
  const served = (proof: string | null, trial_count: number) => servedText({ proof, trials: [3, 4].slice(0, trial_count), trial_count });
  assert.deepEqual([served(null, 1), served(null, 2), served(null, 0)], ["trial 3", "2 trials", "another study's"]);
  assert.deepEqual([served("whole", 1), served("handover", 2), served("audit", 0), served("check", 2)], ["verifies trial 3", "verifies 2 trials", "verifies another study", "checks the trainer"]);
});

test("texts of numbers and durations", () => {
  assert.deepEqual([number(0.123456), number(-2), number(1e-7), number(null), number(12345)], ["0.1235", "−2", "1e−7", "–", "12,345"]);
  assert.deepEqual([1e12, -1.93752e36, 999_999_999, 1.25e-5, 10.5e6].map((value) => number(value)), ["1e12", "−1.94e36", "999,999,999", "1.25e−5", "10,500,000"]);
  assert.deepEqual([duration(59.6), duration(3725), duration(90061)], ["1:00", "1:02:05", "1 d 01:01"]);
});

test("logged metrics are one line for each name, without missing values", () => {
  const point = (step: number, metrics: Record<string, number | null>) => ({ step, metrics, node: "n" });
  const lines = loggedLines([point(1, { loss: 2, grad: 0.5 }), point(3, { loss: null }), point(4, { loss: 1 })], "red");
  assert.deepEqual(
    lines.map(({ label, x, y }) => [label, x, y]),
    [
      ["grad", [1], [0.5]],
      ["loss", [1, 4], [2, 1]],
    ],
  );
});

test("the ends of an axis say that values are beyond them", () => {
  const { positions, ticks } = resultAxis("loss", [9, 2, 1.5, 1.2, 1, null], [1, 2], String);
  assert.deepEqual(positions.slice(0, 2), [1, 1]);
  assert.deepEqual([ticks[0]!.text, ticks.at(-1)!.text], ["1", "≥ 2"]);
});

test("a study that ended ends there, however long its plan is used", () => {
  assert.equal(lastMoment({ finished_at: 14 }, { at: 440 }), 14);
  assert.equal(lastMoment({ finished_at: null }, { at: 440 }), 440);
});

test("a constant hyper-parameter has no line", () => {
  const schedule = (values: unknown[]) => ({ name: "bs", steps: [0, 1], values, text: "" });
  assert.deepEqual([[64, 64], [64, 128], ["sgd", "sgd"], []].map((values) => isConstant(schedule(values))), [true, false, true, true]);
});

test("a page of events: the last ones, those before or after another page, or those around a linked one", () => {
  assert.deepEqual(pageRange({}), { before: "9007199254740991" });
  assert.deepEqual([pageRange({ before: "40" }), pageRange({ after: "40" }), pageRange({ from: "5" })], [{ before: "40" }, { after: "40" }, { after: "5" }]);
  assert.deepEqual([pageRange({ event: "600" }), pageRange({ event: "7" })], [{ after: "350" }, { after: "0" }]);
});

test("addresses of earlier versions name the view that has their content now", () => {
  const now = (hash: string) => {
    const { path, query } = currentRoute(parseRoute(hash));
    return formatRoute(path, query);
  };
  assert.equal(now("#/studies/s/rung-tree?x=linear"), "#/studies/s/tree?x=linear");
  assert.equal(now("#/studies/s/rungs?bracket=1"), "#/studies/s/tree/rungs?bracket=1");
  assert.equal(now("#/studies/s/slots"), "#/studies/s/timeline");
  assert.equal(now("#/studies/s/relations"), "#/studies/s/importance");
  assert.equal(now("#/studies/s/tree?node=n"), "#/studies/s/tree/stages?node=n");
  for (const same of ["#/slots", "#/studies/rungs", "#/studies/s/tree", "#/studies/s/constructor", "#/"]) assert.equal(now(same), same);
});

test("a configuration is a sentence", () => {
  const schedules = [{ name: "lr", text: "0.2 → 0.01" }, { name: "bs", text: "64 → 128" }, { name: "momentum", text: "0.5" }];
  const hp = { lr: { family: "exponential" }, bs: { family: "values" }, momentum: { family: "constant", value: 0.5 } };
  assert.equal(configurationText(schedules, hp), "lr 0.2 → 0.01 (exponential), bs 64 → 128 and momentum 0.5");
  assert.equal(configurationText(schedules.slice(2), hp), "momentum 0.5");
});
