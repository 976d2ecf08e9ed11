/** The rows of a rung ladder, and the edges between them. */
import type { RankedRung } from "../types.ts";

export const ROW = 24;
export const WIDTH = 200;
/** So many trials of a rung are shown in full; of more, the best, those around the cut, and those that are chosen. */
export const MOST = 60;
const AROUND = 12;

export type Row =
  | { kind: "trial"; trial: number; rank: number; value: number | null; isPromoted: boolean; fate: string }
  | { kind: "cut"; text: string }
  | { kind: "more"; hidden: number };

/** isLast: nobody can be promoted from it, the winner included, or nobody was yet. */
export function rowsOf(rung: RankedRung, chosen: number[], isLast = false): Row[] {
  const promoted = new Set(rung.promoted);
  const cut = lastOf(rung.trials, promoted);
  const rows: Row[] = [];
  let hidden = 0;
  rung.trials.forEach((trial, index) => {
    const isNear = index < MOST / 2 || Math.abs(index - cut) <= AROUND || chosen.includes(trial);
    if (rung.trials.length > MOST && !isNear) hidden += 1;
    else {
      if (hidden) rows.push({ kind: "more", hidden });
      hidden = 0;
      const [value, isPromoted] = [rung.values[index] ?? null, promoted.has(trial)];
      const fate = isPromoted ? "promoted" : isLast || value === null ? "" : "not promoted";
      rows.push({ kind: "trial", trial, rank: index + 1, value, isPromoted, fate });
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

function lastOf(trials: number[], wanted: Set<number>): number {
  return trials.reduce((last, trial, index) => (wanted.has(trial) ? index : last), -1);
}

interface Edge {
  key: string;
  trial: number;
  path: string;
}

/** From where a trial stands in a rung to where it stands in the next. */
export function edges(columns: Row[][]): Edge[] {
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
