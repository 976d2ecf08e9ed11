/** A configuration as a sentence. */
import type { Schedule } from "../types.ts";

/** More hyper-parameters than this are counted. */
const MAX_NAMED = 8;

type Hyperparameters = Record<string, unknown>;

/** "lr 0.2 → 0.0144 (exponential), bs 64 and momentum 0.5": the values of the schedules, and the families of the moving ones. */
export function configurationText(schedules: Pick<Schedule, "name" | "text">[], hp: Hyperparameters): string {
  const parts = schedules.map(({ name, text }) => {
    const family = familyOf(hp[name]);
    return `${name} ${text}${family ? ` (${family})` : ""}`;
  });
  const others = parts.length - MAX_NAMED;
  return joinWords(others > 1 ? [...parts.slice(0, MAX_NAMED), `${others} more`] : parts);
}

function familyOf(value: unknown): string {
  const family = typeof value === "object" && value !== null ? (value as Hyperparameters)["family"] : undefined;
  return typeof family === "string" && !["constant", "values"].includes(family) ? family : "";
}

/** "a, b and c". */
export function joinWords(words: string[]): string {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`;
}
