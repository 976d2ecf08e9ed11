/**
 * Layout of the rung tree: the learning curves of all trials in one drawing. x is the step, y the metric. Trials share a
 * line up to the step where they branch, and its width grows with their number.
 */
import type { Tree } from "../types.ts";

export interface Segment {
  node: number;
  x0: number;
  y0: number;
  x1: number;
  y1: number;
  trials: number;
  /** Before the first measurement, where the value is only estimated. */
  isEstimate: boolean;
}

export interface End {
  trial: number;
  step: number;
  value: number;
  /** Standard deviation of the repeats whose mean is the value. */
  deviation?: number;
  state: string;
  node: number;
}

/** From an averaged state to the mean. */
export interface Link {
  trial: number;
  x0: number;
  y0: number;
  x1: number;
  y1: number;
}

interface Drawing {
  segments: Segment[];
  ends: End[];
  /** (step, value) of each measurement. */
  points: [number, number][];
  links: Link[];
}

interface Point {
  step: number;
  value: number;
}

export function rungTree(tree: Tree): Drawing {
  const { nodes, trials } = tree;
  const children = childLists(nodes.parent);
  const exits = nodeExits(tree, children);
  const next = firstValues(tree, children);
  const lines: Point[][] = [];
  const known: number[] = []; // for each node the first measured step of its path
  const drawing: Drawing = { segments: [], ends: [], points: [], links: [] };
  for (let node = 0; node < tree.count; node += 1) {
    const parent = nodes.parent[node]!;
    const above = parent < 0 ? undefined : pointAt(lines[parent]!, nodes.start[node]!);
    const first = next[node];
    const anchor = above ?? (first && { step: nodes.start[node]!, value: first.value });
    known.push(Math.min(parent >= 0 && known[parent]! <= nodes.start[node]! ? known[parent]! : Infinity, nodes.steps[node]![0] ?? Infinity));
    const line = [...(anchor ? [anchor] : []), ...nodePoints(tree, node, children[node]!, next, anchor)];
    lines.push(line);
    for (let index = 1; index < line.length; index += 1) {
      const [from, to] = [line[index - 1]!, line[index]!];
      const passing = countExitsSince(exits[node]!, to.step);
      if (passing > 0) {
        drawing.segments.push({ node, x0: from.step, y0: from.value, x1: to.step, y1: to.value, trials: passing, isEstimate: to.step <= known[node]! });
      }
    }
    nodes.steps[node]!.forEach((step, index) => drawing.points.push([step, nodes.values[node]![index]!]));
  }
  trials.node.forEach((node, trial) => {
    const end = pointAt(lines[node]!, trials.steps[trial]!);
    const deviation = end && deviationAt(tree, node, end.step);
    if (end) drawing.ends.push({ trial, step: end.step, value: end.value, state: trials.state[trial]!, node, ...(deviation && { deviation }) });
  });
  drawing.links = averageLinks(tree, lines);
  return drawing;
}

/**
 * Two trees of a study with repeats: the means, on the nodes of the first repeats, and all repeats, each as a trial of
 * its own. Without repeats the first is the tree itself, and the second is null.
 */
export function meanAndRepeatTrees(tree: Tree): { means: Tree; repeats: Tree | null } {
  const others = tree.trials.repeats ?? [];
  if (!others.some((each) => each.length)) return { means: tree, repeats: null };
  const { node, steps } = tree.trials;
  const curves = tree.nodes.means;
  const nodes = { ...tree.nodes, steps: curves.map((curve) => curve.map((point) => point[0]!)), values: curves.map((curve) => curve.map((point) => point[1]!)) };
  const runs = node.map((_, trial) => repeatNodes(tree, trial));
  const all = { ...tree.trials, node: runs.flat(), steps: runs.flatMap((each, trial) => each.map(() => steps[trial]!)), state: [], average_of: [] };
  return { means: countTrials({ ...tree, nodes }), repeats: countTrials({ ...tree, trials: all }) };
}

/** The learning curve of a trial, from all nodes of its path. */
export function trialCurve(tree: Tree, trial: number): { x: number[]; y: number[] } {
  const path = trialPath(tree, trial).reverse();
  const [x, y]: [number[], number[]] = [[], []];
  path.forEach((node, place) => {
    const next = path[place + 1];
    const end = next === undefined ? tree.trials.steps[trial]! : tree.nodes.start[next]!;
    tree.nodes.steps[node]!.forEach((step, number) => step <= end && (x.push(step), y.push(tree.nodes.values[node]![number]!)));
  });
  return { x, y };
}

/** The tree with the number of trials through each node counted again. */
function countTrials(tree: Tree): Tree {
  const trials = Array<number>(tree.count).fill(0);
  tree.trials.node.forEach((_, trial) => trialPath(tree, trial).forEach((node) => (trials[node]! += 1)));
  return { ...tree, nodes: { ...tree.nodes, trials } };
}

/** The standard deviation of the repeats at a step. */
function deviationAt(tree: Tree, node: number, step: number): number | undefined {
  return tree.nodes.means?.[node]?.find((point) => point[0] === step)?.[2];
}

/** A link from each averaged state to its mean. Reports saved by earlier versions have no `average_of`. */
function averageLinks(tree: Tree, lines: Point[][]): Link[] {
  return (tree.trials.average_of ?? []).flatMap((parts, trial) => {
    const mean = lines[trialPath(tree, trial).at(-1)!]?.[0];
    return parts.flatMap(([part, step]) => {
      const node = trialPath(tree, part!).find((each) => tree.nodes.start[each]! < step! || tree.nodes.parent[each]! < 0);
      const from = node === undefined ? undefined : pointAt(lines[node]!, step!);
      return mean && from ? [{ trial, x0: from.step, y0: from.value, x1: mean.step, y1: mean.value }] : [];
    });
  });
}

export function childLists(parents: number[]): number[][] {
  const found: number[][] = parents.map(() => []);
  parents.forEach((parent, node) => parent >= 0 && found[parent]!.push(node));
  return found;
}

/** For each node the steps at which trials leave it, to a child or for good; the last first. */
function nodeExits({ nodes, trials }: Tree, children: number[][]): number[][] {
  const found: number[][] = children.map((below) =>
    below.flatMap((child) => Array<number>(nodes.trials[child]!).fill(nodes.start[child]!)),
  );
  trials.node.forEach((node, trial) => found[node]!.push(trials.steps[trial]!));
  return found.map((steps) => steps.sort((a, b) => b - a));
}

/** The number of exits at this step or later. */
function countExitsSince(exits: number[], step: number): number {
  let [low, high] = [0, exits.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (exits[middle]! >= step) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The first measurement in each node; without one, the mean of the first measurements of its children. */
function firstValues({ count, nodes }: Tree, children: number[][]): (Point | undefined)[] {
  const found: (Point | undefined)[] = Array(count).fill(undefined);
  for (let node = count - 1; node >= 0; node -= 1) {
    const step = nodes.steps[node]![0];
    found[node] = step === undefined ? mean(children[node]!.map((child) => found[child])) : { step, value: nodes.values[node]![0]! };
  }
  return found;
}

function mean(points: (Point | undefined)[]): Point | undefined {
  const known = points.filter((point) => point !== undefined);
  if (known.length === 0) return undefined;
  const sum = (key: keyof Point) => known.reduce((total, point) => total + point[key], 0) / known.length;
  return { step: sum("step"), value: sum("value") };
}

/**
 * The points of a node's line: its measurements, and an interpolated point at each step where a child branches off.
 * After the last measurement the line leads to the first values of the children.
 */
function nodePoints(tree: Tree, node: number, children: number[], next: (Point | undefined)[], anchor?: Point): Point[] {
  const { nodes } = tree;
  const measured = nodes.steps[node]!.map((step, index) => ({ step, value: nodes.values[node]![index]! }));
  const known = new Set(measured.map((point) => point.step));
  const leaves = [...new Set(children.map((child) => nodes.start[child]!))].filter((step) => !known.has(step));
  const found = [...measured];
  for (const step of leaves) {
    const before = measured.filter((point) => point.step < step).at(-1) ?? anchor;
    const own = measured.find((point) => point.step > step);
    const below = children.filter((child) => nodes.start[child] === step).map((child) => next[child]);
    const target = own ?? mean(below);
    if (target) found.push({ step, value: before ? interpolate(before, target, step) : target.value });
  }
  return found.sort((a, b) => a.step - b.step);
}

function interpolate(from: Point, to: Point, step: number): number {
  const share = to.step > from.step ? (step - from.step) / (to.step - from.step) : 0;
  return from.value + (to.value - from.value) * Math.min(1, Math.max(0, share));
}

/** The last point of a line up to a step. */
function pointAt(line: Point[], step: number): Point | undefined {
  return line.filter((point) => point.step <= step).at(-1);
}

/** The nodes of a trial, from its last one up to the root. */
export function trialPath(tree: Tree, trial: number): number[] {
  return nodePath(tree, tree.trials.node[trial] ?? -1);
}

/** A node and its ancestors. */
export function nodePath(tree: Tree, last: number): number[] {
  const path: number[] = [];
  for (let node = last; node >= 0; node = tree.nodes.parent[node]!) path.push(node);
  return path;
}

/** The last node of each repeat of a trial. */
export function repeatNodes({ trials }: Tree, trial: number): number[] {
  return [trials.node[trial] ?? -1, ...(trials.repeats?.[trial] ?? [])];
}

/** A step of a trial at which another one may branch off. */
export interface BranchPoint {
  trial: number;
  at: number;
}

/** The first of the trials that passes a node at a step after its first one, trained that far. Null if there is none. */
export function branchPoint(tree: Tree, trials: number[], node: number, step: number): BranchPoint | null {
  const at = Math.max(1, Math.min(step, tree.nodes.trained[node]!));
  const trial = trials.find((each) => exitStep(tree, each, node) >= at);
  return trial === undefined || at < tree.nodes.start[node]! ? null : { trial, at };
}

/** The step at which a trial leaves a node; -1 if it does not pass it. */
function exitStep({ nodes, trials }: Tree, trial: number, wanted: number): number {
  let until = trials.steps[trial] ?? -1;
  for (let node = trials.node[trial] ?? -1; node >= 0; node = nodes.parent[node]!) {
    if (node === wanted) return until;
    until = nodes.start[node]!;
  }
  return -1;
}

/** The nodes of some trials, each with the last step at which one of them leaves it. */
export function pathEnds(tree: Tree, trials: number[]): Map<number, number> {
  const found = new Map<number, number>();
  for (const trial of trials) {
    let until = tree.trials.steps[trial] ?? 0;
    for (const node of trialPath(tree, trial)) {
      found.set(node, Math.max(until, found.get(node) ?? 0));
      until = tree.nodes.start[node]!;
    }
  }
  return found;
}

export function isOnPath(path: Map<number, number>, segment: Segment): boolean {
  return segment.x1 <= (path.get(segment.node) ?? -1);
}

/** For each node the value that all its trials have; undefined if they differ. */
export function commonValues(tree: Tree, values: unknown[]): (unknown | undefined)[] {
  const found: unknown[] = Array(tree.count).fill(undefined);
  const mixed: boolean[] = Array(tree.count).fill(false);
  tree.trials.node.forEach((_, trial) => {
    for (const node of trialPath(tree, trial)) {
      if (found[node] === undefined && !mixed[node]) found[node] = values[trial];
      else if (found[node] !== values[trial]) [mixed[node], found[node]] = [true, undefined];
    }
  });
  return found;
}
