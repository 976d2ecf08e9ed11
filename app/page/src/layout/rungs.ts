/** Rungs over the views: the steps at which trials are compared, and the last decision about each trial. */
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
const NEARLY_ALL = 0.9;

/** The furthest rung that nearly all reached who reached any: results after the same number of steps can be compared. */
export function fullest(rungs: Rungs | null): string {
  const reached = new Map<number, number>();
  for (const item of rungs?.items ?? []) reached.set(item.rung, (reached.get(item.rung) ?? 0) + item.trials.length);
  const enough = NEARLY_ALL * Math.max(...reached.values());
  const rung = Math.max(...[...reached].filter(([, trials]) => trials >= enough).map(([rung]) => rung));
  return reached.size ? String(rung) : END;
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
