/** The Pareto front as points of two metrics. */
import type { Table } from "../table.ts";
import type { Study } from "../types.ts";

type Kind = "front" | "dominated" | "infeasible";

export interface FrontDot {
  trial: number;
  x: number;
  y: number;
  kind: Kind;
}

const METRIC = "metrics.";

/** The metrics of the objectives, then the metrics of the constraints. */
export function metricNames(study: Study, table: Table): string[] {
  const goals = study.metrics.map((each) => each["name"]!);
  const there = Object.keys(table.columns).filter((name) => name.startsWith(METRIC)).map((name) => name.slice(METRIC.length));
  return [...goals, ...there.filter((name) => !goals.includes(name))];
}

/** Null for a metric that only a constraint uses. */
export function isLowerBetter(study: Study, metric: string): boolean | null {
  const goal = study.metrics.find((each) => each["name"] === metric);
  if (goal) return goal["mode"] === "min";
  return metric === study.metric ? study.mode === "min" : null;
}

/** The trials with results on both axes. A trial that violates a constraint is not on the front. */
export function frontDots(table: Table, x: string, y: string): FrontDot[] {
  const [xs, ys] = [table.column(METRIC + x), table.column(METRIC + y)];
  const [front, violation] = [table.column("front"), table.column("violation")];
  return xs.flatMap((value, trial) => {
    const other = ys[trial];
    if (typeof value !== "number" || typeof other !== "number") return [];
    const kind: Kind = Number(violation[trial]) > 0 ? "infeasible" : front[trial] === true ? "front" : "dominated";
    return [{ trial, x: value, y: other, kind }];
  });
}

/** The border of the region that the front dominates, as a staircase from the best in x to the best in y. */
export function staircase(dots: FrontDot[], isLowerX: boolean, isLowerY: boolean): [number, number][] {
  const front = dots.filter((dot) => dot.kind === "front").sort((a, b) => (isLowerX ? a.x - b.x : b.x - a.x) || (isLowerY ? a.y - b.y : b.y - a.y));
  const edge: [number, number][] = [];
  for (const dot of front) {
    const before = edge.at(-1);
    if (before) edge.push([dot.x, before[1]]);
    edge.push([dot.x, dot.y]);
  }
  return edge;
}
