/** Rungs in the views: where trials are compared, and the last decision about each trial. */
import { count, plural } from "../format.ts";
import type { History, RankedRung, Rungs } from "../types.ts";

const MAX_RUNG_LINES = 12;

/** The event of the last decision, by trial. */
export function lastDecisions(history: History | null): Map<number, number> {
  const found = new Map<number, number>();
  history?.decisions.trial.forEach((trial, index) => {
    if (trial !== null) found.set(trial, history.decisions.position[index]!);
  });
  return found;
}

/** The steps of the rungs; none if there are more than `MAX_RUNG_LINES`. */
export function rungLines(items: RankedRung[]): { step: number; name: string }[] {
  const names = new Map<number, string>();
  for (const item of items) if (!names.has(item.steps)) names.set(item.steps, `rung ${item.rung}`);
  const found = [...names].map(([step, name]) => ({ step, name })).sort((a, b) => a.step - b.step);
  return found.length > MAX_RUNG_LINES ? [] : found;
}

/** Instead of a rung: the result at each trial's end. */
export const TRIAL_END = "end";

/** The rung to show first, chosen by the server. */
export function defaultRung(rungs: Rungs | null): string {
  return String(rungs?.telling ?? TRIAL_END);
}

/** How many of the trials have a result at the rung. */
export function basisText(values: (number | null)[], rung: string): string {
  const found = values.filter((value) => value !== null).length;
  return `Results at ${rung === TRIAL_END ? "each trial's end" : `rung ${rung}`}: ${count(found)} of ${plural(values.length, "trial")}.`;
}

/** Each rung over all brackets, with its steps and its number of results. */
export function rungNames(rungs: Rungs | null): { rung: number; name: string }[] {
  const found = new Map<number, { steps: Set<number>; trials: number }>();
  for (const { rung, steps, values } of rungs?.items ?? []) {
    const { steps: all, trials } = found.get(rung) ?? { steps: new Set<number>(), trials: 0 };
    found.set(rung, { steps: all.add(steps), trials: trials + values.filter((value) => value !== null).length });
  }
  const sorted = [...found].sort(([one], [other]) => one - other);
  return sorted.map(([rung, { steps, trials }]) => ({ rung, name: `rung ${rung}: step ${[...steps].sort((a, b) => a - b).join(", ")}, ${plural(trials, "trial")}` }));
}

const HALVING_FIELDS = ["reduction_factor", "min_steps", "max_steps", "num_trials", "brackets"];
const OTHER_FIELDS: Record<string, string[]> = {
  median: ["min_steps", "min_trials", "num_trials", "max_steps", "interval"],
  bandit: ["epsilon", "interval", "num_trials", "max_steps"],
  early_term: ["boundary", "delta", "num_trials", "max_steps"],
  pop: ["boundary", "lower_bound", "kill_threshold", "num_trials", "max_steps"],
};

/** The numeric fields of a tuner in the study file. */
export function tunerFields(kind: string): string[] {
  return (OTHER_FIELDS[kind] ?? HALVING_FIELDS).map((name) => `tuner.${name}`);
}
