/** The rows of the rung ladder, and the edges between its columns. */
import type { RankedRung } from "../types.ts";

export const ROW = 24;
export const WIDTH = 216;
/** A rung with more trials shows the best, the trials around the cut, and the selected ones. */
export const MAX_FULL_ROWS = 60;
const ROWS_AROUND_CUT = 12;

export type Row =
  | { kind: "trial"; trial: number; rank: number; value: number | null; isPromoted: boolean; decision: string }
  | { kind: "cut"; text: string }
  | { kind: "more"; hidden: number };

/** The rows of one rung. From the last rung no trial can be promoted, so its rows have no decision. */
export function ladderRows(rung: RankedRung, selected: number[], isLast = false): Row[] {
  const promoted = new Set(rung.promoted);
  const cut = lastIndex(rung.trials, promoted);
  const rows: Row[] = [];
  let hidden = 0;
  rung.trials.forEach((trial, index) => {
    const isNear = index < MAX_FULL_ROWS / 2 || Math.abs(index - cut) <= ROWS_AROUND_CUT || selected.includes(trial);
    if (rung.trials.length > MAX_FULL_ROWS && !isNear) hidden += 1;
    else {
      if (hidden) rows.push({ kind: "more", hidden });
      hidden = 0;
      const [value, isPromoted] = [rung.values[index] ?? null, promoted.has(trial)];
      const decision = isPromoted ? "promoted" : isLast || value === null ? "" : "not promoted";
      rows.push({ kind: "trial", trial, rank: index + 1, value, isPromoted, decision });
    }
    if (index === cut && promoted.size) {
      if (hidden) rows.push({ kind: "more", hidden });
      hidden = 0;
      rows.push({ kind: "cut", text: `${promoted.size} of ${rung.trials.length} promoted` });
    }
  });
  if (hidden) rows.push({ kind: "more", hidden });
  return rows;
}

function lastIndex(trials: number[], promoted: Set<number>): number {
  return trials.reduce((last, trial, index) => (promoted.has(trial) ? index : last), -1);
}

interface Edge {
  key: string;
  trial: number;
  path: string;
}

/** Curves from the row of each trial in a rung to its row in the next rung. */
export function ladderEdges(columns: Row[][]): Edge[] {
  const places = columns.map((rows) => new Map(rows.flatMap((row, index) => (row.kind === "trial" ? [[row.trial, index] as const] : []))));
  return places.slice(1).flatMap((after, number) =>
    [...after].flatMap(([trial, to]) => {
      const from = places[number]!.get(trial);
      if (from === undefined) return [];
      const [x0, x1] = [number * WIDTH + WIDTH - 40, (number + 1) * WIDTH];
      const [y0, y1] = [from * ROW + ROW / 2, to * ROW + ROW / 2];
      return [{ key: `${number}-${trial}`, trial, path: `M${x0} ${y0}C${x0 + 20} ${y0} ${x1 - 20} ${y1} ${x1} ${y1}` }];
    }),
  );
}
