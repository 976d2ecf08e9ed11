/** The line of a hyper-parameter over the steps. */
import type { Schedule } from "../types.ts";

/** A constant is its value; a line of it would say nothing. */
export function isConstant({ values }: Schedule): boolean {
  return new Set(values.map(String)).size <= 1;
}

/** Heights from 0 to 1. Values that are not numbers have one level each. */
export function valueLevels(values: unknown[]): number[] {
  const numbers = values.every((value) => typeof value === "number")
    ? (values as number[])
    : values.map((value) => [...new Set(values.map(String))].indexOf(String(value)));
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  return numbers.map((value) => (high > low ? (value - low) / (high - low) : 0.5));
}
