/** From what is measured to where it is drawn. */

/** A span from which on values are shown by their logarithm. */
const ORDERS = 30;

export type Scale = (value: number) => number;

/** Straight, from [low, high] to [from, to]. */
export function linear([low, high]: [number, number], [from, to]: [number, number]): Scale {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** By the logarithm of what follows step 0, which has a place of its own at the beginning. */
export function steps(most: number, range: [number, number], isLog: boolean): Scale {
  if (!isLog) return linear([0, Math.max(1, most)], range);
  const scale = linear([0, Math.log2(1 + Math.max(1, most))], range);
  return (step) => scale(Math.log2(1 + Math.max(0, step)));
}

/** The same by the logarithm of the values, which are above 0. */
export function robustByLog(values: number[], isWhole = false, mode = ""): [number, number] {
  const [low, high] = robust(values.map(Math.log), isWhole, mode);
  return [Math.exp(low), Math.exp(high)];
}

/**
 * The range in which nearly all values lie: one bad trial must not press the others flat. mode: `min` or `max`, which end
 * is the better one: it is always seen, however few came there.
 */
export function robust(values: number[], isWhole = false, mode = ""): [number, number] {
  const known = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (known.length === 0) return [0, 1];
  const quantile = (share: number) => known[Math.min(known.length - 1, Math.floor(share * known.length))]!;
  let [low, high] = [known[0]!, known.at(-1)!];
  if (!isWhole && known.length >= 10) {
    const [a, b] = [quantile(0.05), quantile(0.95)];
    const margin = (b - a || Math.abs(b) || 1) * 0.35;
    if (mode !== "min") low = Math.max(low, a - margin);
    if (mode !== "max") high = Math.min(high, b + margin);
  }
  const pad = (high - low || Math.abs(high) || 1) * 0.04;
  return [low - pad, high + pad];
}

/** Whether values are shown by their logarithm where nobody chose: all are above 0, and they span orders of magnitude. */
export function spansOrders(values: number[]): boolean {
  const [low, high] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
  return low > 0 && high / low > ORDERS;
}

/** By the logarithm, from [low, high] to [from, to]. */
export function logarithmic([low, high]: [number, number], range: [number, number]): Scale {
  const scale = linear([Math.log(low), Math.log(high)], range);
  return (value) => scale(Math.log(Math.max(value, low / 2)));
}

/** 1, 2 and 5 of each power of ten in a range above 0; of many powers, only the powers. */
export function logTicks([low, high]: [number, number], wanted: number): number[] {
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, index) => 10 ** (Math.floor(Math.log10(low)) + index));
  const all = powers.flatMap((power) => [1, 2, 5].map((factor) => Number((factor * power).toPrecision(3))));
  const inside = (each: number) => low <= each && each <= high;
  const found = all.filter(inside).length <= 1.5 * wanted ? all : powers;
  return found.filter(inside);
}

/** Round numbers in a range, about so many. */
export function ticks([low, high]: [number, number], wanted: number): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  return multiples([low, high], [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? power);
}

/** Whole numbers that an axis of training steps goes by. */
export const WHOLE_STEPS = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat();

/** Steps of time that people count by, in seconds. */
export const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/** Round times in a range of seconds, about so many. */
export function timeTicks([low, high]: [number, number], wanted: number): number[] {
  const rough = (high - low) / Math.max(1, wanted);
  const day = TIME_STEPS.at(-1)!;
  return multiples([low, high], TIME_STEPS.find((each) => each >= rough) ?? day * Math.ceil(rough / day));
}

function multiples([low, high]: [number, number], step: number): number[] {
  const found: number[] = [];
  for (let index = Math.ceil(low / step); index * step <= high; index += 1) found.push(Number((index * step).toPrecision(12)));
  return found;
}

/** Steps to mark on an axis: powers of two where it is logarithmic. */
export function stepTicks(most: number, isLog: boolean): number[] {
  if (!isLog) return ticks([0, most], 6).filter(Number.isInteger);
  const found: number[] = [];
  for (let step = 1; step <= most; step *= most > 4096 ? 10 : 4) found.push(step);
  return found;
}
