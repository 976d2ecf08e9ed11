/** Rungs over the views: the steps at which trials are compared, and the last decision about each trial. */
import { count, plural } from "../format.ts";
import type { History, RankedRung, Rungs } from "../types.ts";

const MOST_RUNGS = 12;

/** The event of the last decision about each trial. */
export function lastDecisions(history: History | null): Map<number, number> {
  const found = new Map<number, number>();
  history?.decisions.trial.forEach((trial, index) => {
    if (trial !== null) found.set(trial, history.decisions.position[index]!);
  });
  return found;
}

/** The steps at which trials are compared; where every step is one, none is worth a line. */
export function rungLines(items: RankedRung[]): { step: number; name: string }[] {
  const names = new Map<number, string>();
  for (const item of items) if (!names.has(item.steps)) names.set(item.steps, `rung ${item.rung}`);
  const found = [...names].map(([step, name]) => ({ step, name })).sort((a, b) => a.step - b.step);
  return found.length > MOST_RUNGS ? [] : found;
}

/** Not a rung, but where each trial ended. */
export const END = "end";

/** Where results are compared unless another place is chosen: the rung that tells most, by the server's rule. */
export function opening(rungs: Rungs | null): string {
  return String(rungs?.telling ?? END);
}

/** How many trials a picture of results rests on, of all. */
export function basis(values: (number | null)[], rung: string): string {
  const found = values.filter((value) => value !== null).length;
  return `Results at ${rung === END ? "each trial's end" : `rung ${rung}`}: ${count(found)} of ${plural(values.length, "trial")}.`;
}

/** Each rung once, over all brackets, with how far it is and how many trials have a result there. */
export function rungNames(rungs: Rungs | null): { rung: number; name: string }[] {
  const found = new Map<number, { steps: Set<number>; trials: number }>();
  for (const { rung, steps, values } of rungs?.items ?? []) {
    const { steps: all, trials } = found.get(rung) ?? { steps: new Set<number>(), trials: 0 };
    found.set(rung, { steps: all.add(steps), trials: trials + values.filter((value) => value !== null).length });
  }
  const sorted = [...found].sort(([one], [other]) => one - other);
  return sorted.map(([rung, { steps, trials }]) => ({ rung, name: `rung ${rung}: step ${[...steps].sort((a, b) => a - b).join(", ")}, ${plural(trials, "trial")}` }));
}

const OF_HALVING = ["reduction_factor", "min_steps", "max_steps", "num_trials", "brackets"];
const OF_OTHERS: Record<string, string[]> = {
  median: ["min_steps", "min_trials", "num_trials", "max_steps", "interval"],
  bandit: ["epsilon", "interval", "num_trials", "max_steps"],
  early_term: ["boundary", "delta", "num_trials", "max_steps"],
  pop: ["boundary", "lower_bound", "kill_threshold", "num_trials", "max_steps"],
};

/** The fields of the study file that may be changed in a tuner of a kind. */
export function tunersNumbers(kind: string): string[] {
  return (OF_OTHERS[kind] ?? OF_HALVING).map((name) => `tuner.${name}`);
}
