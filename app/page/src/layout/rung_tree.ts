/**
 * The rung tree: the curves of all trials, drawn so that what trials share is one line. x is the step, y the metric; a
 * line is as thick as it has trials, splits where they part, and ends where a trial does.
 */
import type { Tree } from "../types.ts";

export interface Segment {
  node: number;
  x0: number;
  y0: number;
  x1: number;
  y1: number;
  trials: number;
  /** Before the first measurement: that they are together is known, the value is not. */
  isGuess: boolean;
}

export interface End {
  trial: number;
  step: number;
  value: number;
  /** Of the repeats whose mean the value is; nothing where there are none. */
  deviation?: number;
  state: string;
  node: number;
}

/** From a state to the mean that it is a part of. */
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
  /** A step with its value at each measured point, for dots. */
  points: [number, number][];
  links: Link[];
}

interface Point {
  step: number;
  value: number;
}

export function rungTree(tree: Tree): Drawing {
  const { nodes, trials } = tree;
  const children = childrenOf(nodes.parent);
  const exits = exitsOf(tree, children);
  const next = nextValues(tree, children);
  const lines: Point[][] = [];
  const known: number[] = []; // for each node the step from which on something is measured on the way to it
  const drawing: Drawing = { segments: [], ends: [], points: [], links: [] };
  for (let node = 0; node < tree.count; node += 1) {
    const parent = nodes.parent[node]!;
    const above = parent < 0 ? undefined : at(lines[parent]!, nodes.start[node]!);
    const first = next[node];
    const anchor = above ?? (first && { step: nodes.start[node]!, value: first.value });
    known.push(Math.min(parent >= 0 && known[parent]! <= nodes.start[node]! ? known[parent]! : Infinity, nodes.steps[node]![0] ?? Infinity));
    const line = [...(anchor ? [anchor] : []), ...pointsOf(tree, node, children[node]!, next, anchor)];
    lines.push(line);
    for (let index = 1; index < line.length; index += 1) {
      const [from, to] = [line[index - 1]!, line[index]!];
      const passing = countFrom(exits[node]!, to.step);
      if (passing > 0) {
        drawing.segments.push({ node, x0: from.step, y0: from.value, x1: to.step, y1: to.value, trials: passing, isGuess: to.step <= known[node]! });
      }
    }
    nodes.steps[node]!.forEach((step, index) => drawing.points.push([step, nodes.values[node]![index]!]));
  }
  trials.node.forEach((node, trial) => {
    const end = at(lines[node]!, trials.steps[trial]!);
    const deviation = end && deviationAt(tree, node, end.step);
    if (end) drawing.ends.push({ trial, step: end.step, value: end.value, state: trials.state[trial]!, node, ...(deviation && { deviation }) });
  });
  drawing.links = linksOf(tree, lines);
  return drawing;
}

/**
 * Of a study with repeats, the tree of the means, whose trials pass the nodes of their first repeat; and the tree of all
 * repeats, as if each were a trial. Of any other study, itself and nothing.
 */
export function withMeans(tree: Tree): { means: Tree; repeats: Tree | null } {
  const others = tree.trials.repeats ?? [];
  if (!others.some((each) => each.length)) return { means: tree, repeats: null };
  const { node, steps } = tree.trials;
  const curves = tree.nodes.means;
  const nodes = { ...tree.nodes, steps: curves.map((curve) => curve.map((point) => point[0]!)), values: curves.map((curve) => curve.map((point) => point[1]!)) };
  const runs = node.map((_, trial) => runsOf(tree, trial));
  const all = { ...tree.trials, node: runs.flat(), steps: runs.flatMap((each, trial) => each.map(() => steps[trial]!)), state: [], average_of: [] };
  return { means: counted({ ...tree, nodes }), repeats: counted({ ...tree, trials: all }) };
}

/** The curve of a trial: that of every node on its way, up to where it leaves it. */
export function curveOf(tree: Tree, trial: number): { x: number[]; y: number[] } {
  const path = pathOf(tree, trial).reverse();
  const [x, y]: [number[], number[]] = [[], []];
  path.forEach((node, place) => {
    const next = path[place + 1];
    const end = next === undefined ? tree.trials.steps[trial]! : tree.nodes.start[next]!;
    tree.nodes.steps[node]!.forEach((step, number) => step <= end && (x.push(step), y.push(tree.nodes.values[node]![number]!)));
  });
  return { x, y };
}

/** With how many of its trials pass each node. */
function counted(tree: Tree): Tree {
  const trials = Array<number>(tree.count).fill(0);
  tree.trials.node.forEach((_, trial) => pathOf(tree, trial).forEach((node) => (trials[node]! += 1)));
  return { ...tree, nodes: { ...tree.nodes, trials } };
}

/** How far the repeats of a trial differ at a step. */
function deviationAt(tree: Tree, node: number, step: number): number | undefined {
  return tree.nodes.means?.[node]?.find((point) => point[0] === step)?.[2];
}

/** An average begins with several states: a line from each. What was saved before there were averages says nothing of them. */
function linksOf(tree: Tree, lines: Point[][]): Link[] {
  return (tree.trials.average_of ?? []).flatMap((parts, trial) => {
    const mean = lines[pathOf(tree, trial).at(-1)!]?.[0];
    return parts.flatMap(([part, step]) => {
      const node = pathOf(tree, part!).find((each) => tree.nodes.start[each]! < step! || tree.nodes.parent[each]! < 0);
      const from = node === undefined ? undefined : at(lines[node]!, step!);
      return mean && from ? [{ trial, x0: from.step, y0: from.value, x1: mean.step, y1: mean.value }] : [];
    });
  });
}

export function childrenOf(parents: number[]): number[][] {
  const found: number[][] = parents.map(() => []);
  parents.forEach((parent, node) => parent >= 0 && found[parent]!.push(node));
  return found;
}

/** For each node the steps at which its trials leave it, to a child or for good; the last first. */
function exitsOf({ nodes, trials }: Tree, children: number[][]): number[][] {
  const found: number[][] = children.map((below) =>
    below.flatMap((child) => Array<number>(nodes.trials[child]!).fill(nodes.start[child]!)),
  );
  trials.node.forEach((node, trial) => found[node]!.push(trials.steps[trial]!));
  return found.map((steps) => steps.sort((a, b) => b - a));
}

/** How many of them leave at this step or later. */
function countFrom(exits: number[], step: number): number {
  let [low, high] = [0, exits.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (exits[middle]! >= step) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** For each node the first value that is measured in it or, where there is none, the mean of those below it. */
function nextValues({ count, nodes }: Tree, children: number[][]): (Point | undefined)[] {
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

/** What was measured in a node, and where its children leave it: between its own measurements or, behind the last of
 * them, on the way to theirs. */
function pointsOf(tree: Tree, node: number, children: number[], next: (Point | undefined)[], anchor?: Point): Point[] {
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
    if (target) found.push({ step, value: before ? between(before, target, step) : target.value });
  }
  return found.sort((a, b) => a.step - b.step);
}

function between(from: Point, to: Point, step: number): number {
  const share = to.step > from.step ? (step - from.step) / (to.step - from.step) : 0;
  return from.value + (to.value - from.value) * Math.min(1, Math.max(0, share));
}

/** The last point of a line up to a step. */
function at(line: Point[], step: number): Point | undefined {
  return line.filter((point) => point.step <= step).at(-1);
}

/** The nodes that a trial passes, its last one first. */
export function pathOf(tree: Tree, trial: number): number[] {
  return pathFrom(tree, tree.trials.node[trial] ?? -1);
}

/** A node and those above it. */
export function pathFrom(tree: Tree, last: number): number[] {
  const path: number[] = [];
  for (let node = last; node >= 0; node = tree.nodes.parent[node]!) path.push(node);
  return path;
}

/** The last node of each repeat of a trial. */
export function runsOf({ trials }: Tree, trial: number): number[] {
  return [trials.node[trial] ?? -1, ...(trials.repeats?.[trial] ?? [])];
}

/** For each node that one of these trials passes, the step at which the last of them leaves it. */
export function wayOf(tree: Tree, trials: number[]): Map<number, number> {
  const found = new Map<number, number>();
  for (const trial of trials) {
    let until = tree.trials.steps[trial] ?? 0;
    for (const node of pathOf(tree, trial)) {
      found.set(node, Math.max(until, found.get(node) ?? 0));
      until = tree.nodes.start[node]!;
    }
  }
  return found;
}

/** Whether a segment is on such a way. */
export function isOn(way: Map<number, number>, segment: Segment): boolean {
  return segment.x1 <= (way.get(segment.node) ?? -1);
}

/** For each node the one value that all trials which pass it have in common, or nothing. */
export function commonValues(tree: Tree, values: unknown[]): (unknown | undefined)[] {
  const found: unknown[] = Array(tree.count).fill(undefined);
  const mixed: boolean[] = Array(tree.count).fill(false);
  tree.trials.node.forEach((_, trial) => {
    for (const node of pathOf(tree, trial)) {
      if (found[node] === undefined && !mixed[node]) found[node] = values[trial];
      else if (found[node] !== values[trial]) [mixed[node], found[node]] = [true, undefined];
    }
  });
  return found;
}
