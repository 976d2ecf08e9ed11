/** Scales from values to pixels, ranges of values, and ticks. */

/** Values whose highest is more than this multiple of the lowest are shown on a logarithmic scale. */
const LOG_RATIO = 30;

export type Scale = (value: number) => number;

/** In pixels. */
export interface Size {
  width: number;
  height: number;
}

export function linearScale([low, high]: [number, number], [from, to]: [number, number]): Scale {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** Logarithmic scales use log2(1 + step), which has a place for step 0. */
export function stepScale(most: number, range: [number, number], isLog: boolean): Scale {
  if (!isLog) return linearScale([0, Math.max(1, most)], range);
  const scale = linearScale([0, Math.log2(1 + Math.max(1, most))], range);
  return (step) => scale(Math.log2(1 + Math.max(0, step)));
}

/** The step at a place in pixels: the inverse of `stepScale`. */
export function stepAt(most: number, [from, to]: [number, number], isLog: boolean): (pixel: number) => number {
  const share = (pixel: number) => (pixel - from) / (to - from || 1);
  if (!isLog) return (pixel) => share(pixel) * Math.max(1, most);
  return (pixel) => 2 ** (share(pixel) * Math.log2(1 + Math.max(1, most))) - 1;
}

/** `robustRange` of the logarithms. All values must be positive. */
export function robustLogRange(values: number[], isWhole = false, mode = ""): [number, number] {
  const [low, high] = robustRange(values.map(Math.log), isWhole, mode);
  return [Math.exp(low), Math.exp(high)];
}

/**
 * The range of nearly all values, so that one bad trial does not flatten the others. The better end, by the mode `min` or
 * `max`, is always in the range. `isWhole` keeps all values.
 */
export function robustRange(values: number[], isWhole = false, mode = ""): [number, number] {
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

/** How many values are outside a range. */
export interface Hidden {
  above: number;
  below: number;
}

export function countHidden(values: number[], [low, high]: [number, number]): Hidden {
  return { above: values.filter((value) => value > high).length, below: values.filter((value) => value < low).length };
}

/** "↑ 4 points above"; "" for none. */
export function hiddenText(count: number, side: "above" | "below"): string {
  return count ? `${side === "above" ? "↑" : "↓"} ${count.toLocaleString("en-US")} ${count === 1 ? "point" : "points"} ${side}` : "";
}

/** Whether a logarithmic scale is the default: all values are positive and span orders of magnitude. */
export function spansOrdersOfMagnitude(values: number[]): boolean {
  const [low, high] = [values.reduce((a, b) => Math.min(a, b), Infinity), values.reduce((a, b) => Math.max(a, b), -Infinity)];
  return low > 0 && high / low > LOG_RATIO;
}

const LOG_SPREAD_RATIO = 50;

/**
 * Whether the values of a hyper-parameter are spread over orders of magnitude: their median is nearer to the middle of a
 * logarithmic axis than to that of a linear one. Uniform values near 0 are not, however small the least of them is.
 */
export function isLogSpread(values: number[]): boolean {
  const sorted = [...values].sort((a, b) => a - b);
  const [low, median, high] = [sorted[0]!, sorted[sorted.length >> 1]!, sorted.at(-1)!];
  if (!(low > 0 && high / low > LOG_SPREAD_RATIO)) return false;
  const fromMiddle = (scale: (bounds: [number, number], range: [number, number]) => Scale) => Math.abs(scale([low, high], [0, 1])(median) - 0.5);
  return fromMiddle(logScale) < fromMiddle(linearScale);
}

/** Whether an axis is logarithmic, by the choice `log` or `linear`, or else by its values. */
export function isLogAxis(values: number[], choice: string | undefined): boolean {
  if (choice === "linear" || values.length === 0 || values.some((value) => value <= 0)) return false;
  return choice === "log" || spansOrdersOfMagnitude(values);
}

export function logScale([low, high]: [number, number], range: [number, number]): Scale {
  const scale = linearScale([Math.log(low), Math.log(high)], range);
  return (value) => scale(Math.log(Math.max(value, low / 2)));
}

/** 1, 2 and 5 times the powers of ten in the range; over many powers, the powers alone. */
export function logTicks([low, high]: [number, number], count: number): number[] {
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - Math.floor(Math.log10(low)) + 1 }, (_, index) => 10 ** (Math.floor(Math.log10(low)) + index));
  const all = powers.flatMap((power) => [1, 2, 5].map((factor) => Number((factor * power).toPrecision(3))));
  const inside = (each: number) => low <= each && each <= high;
  const found = all.filter(inside).length <= 1.5 * count ? all : powers;
  return found.filter(inside);
}

/** About `count` round numbers in the range. */
export function ticks([low, high]: [number, number], count: number): number[] {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return multiples([low, high], [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? power);
}

/** Tick distances of an axis of training steps. */
export const WHOLE_STEPS = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((factor) => factor * 10 ** power)).flat();

/** Tick distances of a time axis, in seconds. */
export const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/** About `count` round times in a range of seconds; tenths of a second where it has only a few. */
export function timeTicks([low, high]: [number, number], count: number): number[] {
  const rough = (high - low) / Math.max(1, count);
  const day = TIME_STEPS.at(-1)!;
  return multiples([low, high], [0.1, 0.2, 0.5, ...TIME_STEPS].find((each) => each >= rough) ?? day * Math.ceil(rough / day));
}

function multiples([low, high]: [number, number], step: number): number[] {
  const found: number[] = [];
  for (let index = Math.ceil(low / step); index * step <= high; index += 1) found.push(Number((index * step).toPrecision(12)));
  return found;
}

/** Ticks of a step axis. A logarithmic axis has powers of 2; above 64 steps of 4, and above 4096 of 10. */
export function stepTicks(most: number, isLog: boolean): number[] {
  if (!isLog) return ticks([0, most], 6).filter(Number.isInteger);
  const found: number[] = [];
  for (let step = 1; step <= most; step *= most > 4096 ? 10 : most > 64 ? 4 : 2) found.push(step);
  return found;
}
