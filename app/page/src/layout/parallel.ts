/** Parallel coordinates: an axis for each hyper-parameter that varies, and one for the metric. */

export interface Axis {
  name: string;
  title: string;
  /** Where each trial crosses it, from 0 to 1; NaN where it has no value. */
  places: number[];
  ticks: { place: number; text: string }[];
}

export type Brushes = Record<string, [number, number]>;

const MOST_KINDS = 12;

/** The axis of a column; by the logarithm where the values span orders of magnitude, by kind where they are no numbers. */
export function axisOf(name: string, values: unknown[], text: (value: unknown) => string): Axis {
  const title = name.replace(/^(hp|shape)\./, "");
  const known = values.filter((value) => value !== null && value !== undefined);
  const isNumeric = known.length > 0 && known.every((value) => typeof value === "number" && Number.isFinite(value));
  const different = [...new Set(known.map(String))];
  if (!isNumeric || different.length <= 4) {
    const order = isNumeric ? (a: string, b: string) => Number(a) - Number(b) : new Intl.Collator(undefined, { numeric: true }).compare;
    const kinds = different.sort(order);
    const place = (value: unknown) => (kinds.length > 1 ? kinds.indexOf(String(value)) / (kinds.length - 1) : 0.5);
    const places = values.map((value) => (value === null || value === undefined ? Number.NaN : place(value)));
    const shown = kinds.length > MOST_KINDS ? [kinds[0]!, kinds.at(-1)!] : kinds;
    return { name, title, places, ticks: shown.map((kind) => ({ place: place(kind), text: isNumeric ? text(Number(kind)) : kind })) };
  }
  const numbers = known as number[];
  const low = numbers.reduce((least, value) => Math.min(least, value), Infinity);
  const high = numbers.reduce((most, value) => Math.max(most, value), -Infinity);
  const isLog = low > 0 && high / low > 50;
  const level = isLog ? Math.log : (value: number) => value;
  const back = isLog ? Math.exp : (value: number) => value;
  const [bottom, top] = [level(low), level(high)];
  const places = values.map((value) => (typeof value === "number" ? (level(value) - bottom) / (top - bottom || 1) : Number.NaN));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((place) => ({ place, text: text(back(bottom + place * (top - bottom))) }));
  return { name, title, places, ticks };
}

/** The trials that lie within every brush. */
export function brushed(axes: Axis[], brushes: Brushes, count: number): number[] {
  const given = axes.filter((axis) => brushes[axis.name]);
  const rows: number[] = [];
  for (let row = 0; row < count; row += 1) {
    const isIn = given.every((axis) => {
      const [low, high] = brushes[axis.name]!;
      return axis.places[row]! >= low && axis.places[row]! <= high;
    });
    if (isIn) rows.push(row);
  }
  return rows;
}

/** Brushes as text for an address, and back: `hp.lr.init:0.2-0.5;hp.bs:0-0.1`. */
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
