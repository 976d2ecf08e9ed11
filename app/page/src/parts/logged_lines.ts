/** Logged metrics as plot lines, one for each metric name. Points without a number are left out. */
import type { Line } from "./plot_lines.ts";
import type { Logged } from "../types.ts";

export function loggedLines(points: Logged["items"], colour: string): Line[] {
  const lines = new Map<string, { x: number[]; y: number[] }>();
  for (const { step, metrics } of points) {
    for (const [name, value] of Object.entries(metrics)) {
      if (typeof value !== "number") continue;
      const line = lines.get(name) ?? { x: [], y: [] };
      lines.set(name, line);
      line.x.push(step);
      line.y.push(value);
    }
  }
  return [...lines].sort(([a], [b]) => (a < b ? -1 : 1)).map(([label, line]) => ({ label, colour, width: 2, ...line }));
}
