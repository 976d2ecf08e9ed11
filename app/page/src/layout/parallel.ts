/** Parallel coordinates: one axis for each varying hyper-parameter, and one for the metric. */

import { isLogSpread } from "./scales.ts";

export interface Axis {
  name: string;
  title: string;
  /** The position of each trial on the axis, from 0 to 1; NaN without a value. */
  positions: number[];
  ticks: { place: number; text: string }[];
  /** Whether values are evenly spaced, because they are few or no numbers. */
  isKinds?: boolean;
}

export type Brushes = Record<string, [number, number]>;

const MAX_KIND_TICKS = 12;

/** The axis of a column. Numbers over several orders of magnitude are logarithmic; other values, and up to four distinct numbers, are evenly spaced. */
export function createAxis(name: string, values: unknown[], text: (value: unknown) => string): Axis {
  const title = name.replace(/^(hp|shape)\./, "");
  const known = values.filter((value) => value !== null && value !== undefined);
  const isNumeric = known.length > 0 && known.every((value) => typeof value === "number" && Number.isFinite(value));
  const distinct = [...new Set(known.map(String))];
  if (!isNumeric || distinct.length <= 4) {
    const order = isNumeric ? (a: string, b: string) => Number(a) - Number(b) : new Intl.Collator(undefined, { numeric: true }).compare;
    const kinds = distinct.sort(order);
    const place = (value: unknown) => (kinds.length > 1 ? kinds.indexOf(String(value)) / (kinds.length - 1) : 0.5);
    const positions = values.map((value) => (value === null || value === undefined ? Number.NaN : place(value)));
    const shown = kinds.length > MAX_KIND_TICKS ? [kinds[0]!, kinds.at(-1)!] : kinds;
    return { name, title, positions, isKinds: true, ticks: shown.map((kind) => ({ place: place(kind), text: isNumeric ? text(Number(kind)) : kind })) };
  }
  const numbers = known as number[];
  const low = numbers.reduce((least, value) => Math.min(least, value), Infinity);
  const high = numbers.reduce((most, value) => Math.max(most, value), -Infinity);
  const isLog = isLogSpread(numbers);
  const level = isLog ? Math.log : (value: number) => value;
  const back = isLog ? Math.exp : (value: number) => value;
  const [bottom, top] = [level(low), level(high)];
  const positions = values.map((value) => (typeof value === "number" ? (level(value) - bottom) / (top - bottom || 1) : Number.NaN));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((place) => ({ place, text: text(back(bottom + place * (top - bottom))) }));
  return { name, title, positions, ticks };
}

/** The axis of the results. Values outside the range are at its ends, whose ticks say so: "≥ 3". */
export function resultAxis(name: string, values: (number | null)[], [low, high]: [number, number], text: (value: unknown) => string): Axis {
  const known = values.filter((value) => value !== null);
  const axis = createAxis(name, values.map((value) => (value === null ? null : Math.min(high, Math.max(low, value)))), text);
  const sign = (place: number) => (place === 1 && known.some((value) => value > high) ? "≥ " : place === 0 && known.some((value) => value < low) ? "≤ " : "");
  return { ...axis, ticks: axis.ticks.map((tick) => ({ ...tick, text: sign(tick.place) + tick.text })) };
}

/** The trials within all brushes. */
export function brushedRows(axes: Axis[], brushes: Brushes, count: number): number[] {
  const given = axes.filter((axis) => brushes[axis.name]);
  const rows: number[] = [];
  for (let row = 0; row < count; row += 1) {
    const isIn = given.every((axis) => {
      const [low, high] = brushes[axis.name]!;
      return axis.positions[row]! >= low && axis.positions[row]! <= high;
    });
    if (isIn) rows.push(row);
  }
  return rows;
}

/** Brushes in the query of an address: `hp.lr.init:0.2-0.5;hp.bs:0-0.1`. */
export function formatBrushes(brushes: Brushes): string {
  return Object.entries(brushes)
    .map(([name, [low, high]]) => `${name}:${low.toFixed(3)}-${high.toFixed(3)}`)
    .join(";");
}

export function parseBrushes(text: string): Brushes {
  const found: Brushes = {};
  for (const part of text.split(";")) {
    const match = /^(.+):([\d.]+)-([\d.]+)$/.exec(part);
    if (match) found[match[1]!] = [Number(match[2]), Number(match[3])];
  }
  return found;
}
