/** Rungs over the views: the steps at which trials are compared, and the last decision about each trial. */
import type { History, RankedRung } from "../types.ts";

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
