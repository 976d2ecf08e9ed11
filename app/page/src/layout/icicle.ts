/** Icicle layout of the search plan: x is the step, and the height of a node is the number of its trials at that step. */
import type { Tree } from "../types.ts";
import { childLists, trialPath } from "./rung_tree.ts";

export interface Bar {
  node: number;
  /** x in steps, y in trials from the top. */
  x0: number;
  x1: number;
  y0: number;
  y1: number;
  trials: number;
  /** Whether the bar is the first one of its node. */
  isFirst: boolean;
}

/** Where a trial begins with the mean of several states: a node without steps. */
export interface AverageMark {
  step: number;
  /** In trials from the top. */
  y0: number;
  y1: number;
  /** The averaged trials. */
  trials: number[];
}

/** The averages in a drawing of the whole tree. `counted` is the tree with the trial counts of the drawing. */
export function averageMarks(tree: Tree, counted: Tree): AverageMark[] {
  const { trials } = tree;
  const { nodes } = counted;
  const sources = new Map<number, number[]>();
  (trials.average_of ?? []).forEach((parts, trial) => {
    if (parts.length) sources.set(trialPath(tree, trial).at(-1)!, [...new Set(parts.map(([part]) => part!))].sort((a, b) => a - b));
  });
  let y = 0;
  return nodes.parent.flatMap((parent, node) => {
    if (parent >= 0) return [];
    const y0 = y;
    y += nodes.trials[node]!;
    return sources.has(node) ? [{ step: nodes.start[node]!, y0, y1: y, trials: sources.get(node)! }] : [];
  });
}

/** The bars of the subtree below `root`; a root of -1 is the whole tree. */
export function icicle(tree: Tree, root: number): { bars: Bar[]; height: number; from: number; to: number } {
  const { nodes } = tree;
  const children = childLists(nodes.parent);
  const leaving = trialEnds(tree);
  const bars: Bar[] = [];
  let to = 1;
  const place = (top: [number, number][]): number => {
    const stack = [...top];
    let height = 0;
    while (stack.length) {
      const [node, y] = stack.pop()!;
      height = Math.max(height, y + nodes.trials[node]!);
      to = Math.max(to, nodes.end[node]!);
      const parts = nodeExits(node);
      let [from, left] = [nodes.start[node]!, nodes.trials[node]!];
      for (const part of [...parts].reverse()) {
        if (part.step > from) {
          bars.push({ node, x0: from, x1: part.step, y0: y, y1: y + left, trials: left, isFirst: from === nodes.start[node] });
          from = part.step;
        }
        left -= part.trials;
        if (part.child >= 0) stack.push([part.child, y + left]);
      }
    }
    return height;
  };
  /** The steps at which trials leave a node, to a child or for good; the last first. */
  const nodeExits = (node: number) => {
    const below = children[node]!.map((child) => ({ step: nodes.start[child]!, trials: nodes.trials[child]!, child }));
    const ends = leaving[node]!.map(([step, trials]) => ({ step, trials, child: -1 }));
    return [...below, ...ends].sort((a, b) => b.step - a.step || b.trials - a.trials);
  };
  if (root >= 0) return { bars, height: place([[root, 0]]), from: nodes.start[root]!, to };
  let y = 0;
  const roots: [number, number][] = [];
  nodes.parent.forEach((parent, node) => {
    if (parent < 0) [roots.push([node, y]), (y += nodes.trials[node]!)];
  });
  return { bars, height: place(roots), from: 0, to };
}

/** For each node the steps at which trials end in it, each with the number of trials. */
function trialEnds({ count, trials }: Tree): [number, number][][] {
  const found = Array.from({ length: count }, () => new Map<number, number>());
  trials.node.forEach((node, trial) => {
    const step = trials.steps[trial]!;
    found[node]!.set(step, (found[node]!.get(step) ?? 0) + 1);
  });
  return found.map((ends) => [...ends]);
}

/** The steps saved by sharing a bar: its trained steps for all trials but one. */
export function savedSteps(tree: Tree, bar: Bar): number {
  const trained = Math.max(0, Math.min(bar.x1, tree.nodes.trained[bar.node]!) - bar.x0);
  return (bar.trials - 1) * trained;
}
