/** Random trees in the format of the API. */
import type { Tree } from "../src/types.ts";

/** A seeded generator of numbers from 0 to 1. */
export function seededRandom(seed: number): () => number {
  let state = seed + 1;
  return () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647;
  };
}

/** Trials with random branches and measurements. */
export function randomTree(seed: number, trials = 20): Tree {
  const random = seededRandom(seed);
  const nodes = { id: [] as string[], parent: [] as number[], start: [] as number[] };
  const add = (parent: number, start: number) => nodes.id.push(`n${nodes.id.length}`) && (nodes.parent.push(parent), nodes.start.push(start), nodes.id.length - 1);
  add(-1, 0);
  const leaf: number[] = [];
  const steps: number[] = [];
  for (let trial = 0; trial < trials; trial += 1) {
    let node = random() < 0.2 ? add(-1, 0) : Math.floor(random() * nodes.id.length);
    for (let depth = 0; depth < 3 && random() < 0.6; depth += 1) node = add(node, nodes.start[node]! + 1 + Math.floor(random() * 5));
    leaf.push(node);
    steps.push(nodes.start[node]! + 1 + Math.floor(random() * 10));
  }
  return toTree(nodes, leaf, steps, random);
}

function toTree(nodes: { id: string[]; parent: number[]; start: number[] }, leaf: number[], steps: number[], random: () => number): Tree {
  const passing = nodes.id.map(() => 0);
  const end = [...nodes.start];
  leaf.forEach((last, trial) => {
    let until = steps[trial]!;
    for (let node = last; node >= 0; node = nodes.parent[node]!) {
      passing[node]! += 1;
      end[node] = Math.max(end[node]!, until);
      until = nodes.start[node]!;
    }
  });
  const kept = nodes.id.map((_, node) => passing[node]! > 0);
  const index = nodes.id.map((_, node) => kept.slice(0, node).filter(Boolean).length);
  const only = <T>(values: T[]) => values.filter((_, node) => kept[node]);
  const measured = only(nodes.id.map((_, node) => Array.from({ length: end[node]! - nodes.start[node]! }, (_, step) => nodes.start[node]! + step + 1).filter(() => random() < 0.4)));
  return {
    count: only(nodes.id).length,
    nodes: {
      id: only(nodes.id),
      parent: only(nodes.parent).map((parent) => (parent < 0 ? -1 : index[parent]!)),
      start: only(nodes.start),
      end: only(end),
      trained: only(end),
      trials: only(passing),
      running: only(nodes.id.map(() => [])),
      checkpoints: only(nodes.id.map(() => [])),
      steps: measured,
      values: measured.map((found) => found.map(random)),
      means: measured.map(() => []),
    },
    forms: [],
    trials: { node: leaf.map((node) => index[node]!), steps, state: steps.map(() => "completed"), average_of: steps.map(() => []), repeats: steps.map(() => []) },
  };
}
