/** The tree by steps: each node as high as it has trials there, lower where some have left, its children beside it. */
import type { Tree } from "../types.ts";
import { childrenOf, pathOf } from "./rung_tree.ts";

export interface Bar {
  node: number;
  /** Steps, and trials counted from above. */
  x0: number;
  x1: number;
  y0: number;
  y1: number;
  /** How many trials take these steps. */
  trials: number;
  isFirst: boolean;
}

/** A node without steps: the mean of several states, and the trials that they are of. */
export interface Mean {
  step: number;
  /** Trials counted from above. */
  y0: number;
  y1: number;
  of: number[];
}

/** Where averages begin, in a drawing of the whole tree. drawn: the same tree, as it is counted there. */
export function meansOf(tree: Tree, drawn: Tree): Mean[] {
  const { trials } = tree;
  const { nodes } = drawn;
  const of = new Map<number, number[]>();
  (trials.average_of ?? []).forEach((parts, trial) => {
    if (parts.length) of.set(pathOf(tree, trial).at(-1)!, [...new Set(parts.map(([part]) => part!))].sort((a, b) => a - b));
  });
  let y = 0;
  return nodes.parent.flatMap((parent, node) => {
    if (parent >= 0) return [];
    const y0 = y;
    y += nodes.trials[node]!;
    return of.has(node) ? [{ step: nodes.start[node]!, y0, y1: y, of: of.get(node)! }] : [];
  });
}

/** What is drawn of the part of the tree below `root`; below -1, all of it. */
export function icicle(tree: Tree, root: number): { bars: Bar[]; height: number; from: number; to: number } {
  const { nodes } = tree;
  const children = childrenOf(nodes.parent);
  const leaving = leavingOf(tree);
  const bars: Bar[] = [];
  let to = 1;
  const place = (top: [number, number][]): number => {
    const stack = [...top];
    let height = 0;
    while (stack.length) {
      const [node, y] = stack.pop()!;
      height = Math.max(height, y + nodes.trials[node]!);
      to = Math.max(to, nodes.end[node]!);
      const parts = exits(node);
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
  /** Who leaves a node where, those that stay longest first. */
  const exits = (node: number) => {
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

/** For each node, at which steps how many trials end in it. */
function leavingOf({ count, trials }: Tree): [number, number][][] {
  const found = Array.from({ length: count }, () => new Map<number, number>());
  trials.node.forEach((node, trial) => {
    const step = trials.steps[trial]!;
    found[node]!.set(step, (found[node]!.get(step) ?? 0) + 1);
  });
  return found.map((ends) => [...ends]);
}

/** The steps that sharing a bar saved: all but one of its trials took none of them. */
export function savedBy(tree: Tree, bar: Bar): number {
  const trained = Math.max(0, Math.min(bar.x1, tree.nodes.trained[bar.node]!) - bar.x0);
  return (bar.trials - 1) * trained;
}
