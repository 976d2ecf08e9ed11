/** Paints the rung tree: axes, lines and ends. Finds the line or the end under the pointer. */
import { STATE_SYMBOLS, axisNumber } from "../format.ts";
import { commonValues, isOnPath, type End, type Link, type Segment } from "../layout/rung_tree.ts";
import { hiddenText, isLogSpread, linearScale, logScale, logTicks, stepAt, stepScale, stepTicks, ticks, type Hidden, type Scale } from "../layout/scales.ts";
import { scale as colourScale, seriesColour, type Palette } from "../theme.ts";
import type { Tree } from "../types.ts";
import type { Size } from "./canvas.tsx";

const [LEFT, RIGHT, TOP, BOTTOM] = [52, 16, 32, 42];
const REACH_PIXELS = 14;
/** With more trials, lines are fainter and ends are dots. */
export const DENSITY_LIMIT = 200;
/** The least width of the best trial's line. */
const BEST_PIXELS = 2;
/** Line dash before the first measurement, where the value is only estimated. */
const ESTIMATE_DASH = [2, 4];

export interface Frame {
  /** The lowest and the highest shown value. */
  domain: [number, number];
  /** The last step. */
  most: number;
  isLog: boolean;
  isLogY: boolean;
}

export function treeScales({ domain, most, isLog, isLogY }: Frame, size: Size): [Scale, Scale] {
  const y = (isLogY ? logScale : linearScale)(domain, [size.height - BOTTOM, TOP]);
  return [stepScale(most, [LEFT, size.width - RIGHT], isLog), y];
}

/** The nearest step to a place in pixels. */
export function stepAtPixel({ most, isLog }: Frame, width: number, pixel: number): number {
  return Math.round(stepAt(most, [LEFT, width - RIGHT], isLog)(pixel));
}

/** Lines to values outside the frame end at its edge, instead of running along it. */
export function clipToFrame(context: CanvasRenderingContext2D, size: Size): void {
  context.beginPath();
  context.rect(0, TOP - 8, size.width, size.height - BOTTOM - TOP + 12);
  context.clip();
}

/** At each edge the number of measurements beyond it. */
export function drawHidden(context: CanvasRenderingContext2D, size: Size, ink: Palette, { above, below }: Hidden): void {
  context.font = "12px system-ui, sans-serif";
  context.textAlign = "right";
  context.fillStyle = ink.warm;
  context.strokeStyle = ink.paper;
  context.lineWidth = 4;
  for (const [text, y] of [[hiddenText(above, "above"), TOP + 8], [hiddenText(below, "below"), size.height - BOTTOM - 8]] as const) {
    context.strokeText(text, size.width - RIGHT - 10, y);
    context.fillText(text, size.width - RIGHT - 10, y);
  }
}

interface Lines {
  x: Scale;
  y: Scale;
  ink: Palette;
  /** By node; null for the plain drawing. */
  colours: (string | undefined)[] | null;
  /** The nodes of the marked trials and of the best trial. */
  markedPath: Map<number, number>;
  bestPath: Map<number, number>;
  /** The number of trials. The more there are, the fainter the lines, so that the drawing shows their density. */
  all: number;
  /** The most trials on one line. */
  thickest: number;
}

export function drawLines(context: CanvasRenderingContext2D, segments: Segment[], { x, y, ink, colours, markedPath, bestPath, all, thickest }: Lines): void {
  const wide = Math.log2(1 + thickest);
  const plain = 0.6 * Math.sqrt(Math.min(1, DENSITY_LIMIT / all));
  context.lineCap = "round";
  for (const segment of orderByBest(segments, bestPath)) {
    const isWon = isOnPath(bestPath, segment);
    if (segment.isEstimate && all > DENSITY_LIMIT && !isWon && !isOnPath(markedPath, segment)) continue;
    context.strokeStyle = colours?.[segment.node] ?? (isWon ? ink.accent : ink.soft);
    context.globalAlpha = markedPath.size && !isOnPath(markedPath, segment) ? 0.14 : isWon ? 0.95 : colours ? plain / 0.63 : plain;
    const width = segment.isEstimate ? 1 : 1 + (Math.log2(segment.trials) / wide) * 11;
    context.lineWidth = isWon ? Math.max(BEST_PIXELS, width) : width;
    context.setLineDash(segment.isEstimate ? ESTIMATE_DASH : []);
    context.beginPath();
    context.moveTo(x(segment.x0), y(segment.y0));
    context.lineTo(x(segment.x1), y(segment.y1));
    context.stroke();
  }
  context.setLineDash([]);
}

/** Thin lines for single repeats, below the lines of the means. */
export function drawRepeats(context: CanvasRenderingContext2D, segments: Segment[], { x, y, ink }: { x: Scale; y: Scale; ink: Palette }): void {
  context.globalAlpha = 0.45;
  context.strokeStyle = ink.soft;
  context.lineWidth = 0.8;
  for (const segment of segments.filter((each) => !each.isEstimate)) {
    context.beginPath();
    context.moveTo(x(segment.x0), y(segment.y0));
    context.lineTo(x(segment.x1), y(segment.y1));
    context.stroke();
  }
}

/** A dotted line from each averaged state to the mean, which is a diamond. */
export function drawLinks(context: CanvasRenderingContext2D, links: Link[], { x, y, ink }: { x: Scale; y: Scale; ink: Palette }): void {
  context.globalAlpha = 0.9;
  context.strokeStyle = context.fillStyle = ink.warm;
  context.lineWidth = 1.2;
  context.setLineDash([1, 3]);
  for (const link of links) {
    context.beginPath();
    context.moveTo(x(link.x0), y(link.y0));
    context.lineTo(x(link.x1), y(link.y1));
    context.stroke();
  }
  context.setLineDash([]);
  context.textAlign = "center";
  context.font = "14px system-ui, sans-serif";
  for (const link of new Map(links.map((each) => [each.trial, each])).values()) context.fillText("◆", x(link.x1), y(link.y1) + 1);
}

/** The path of the best trial comes last, so that it is drawn on top. */
function orderByBest(segments: Segment[], bestPath: Map<number, number>): Segment[] {
  return [...segments.filter((each) => !isOnPath(bestPath, each)), ...segments.filter((each) => isOnPath(bestPath, each))];
}

/** The colour of the value that all trials of a node share. */
export function nodeColours(tree: Tree, values: unknown[]): (string | undefined)[] {
  const common = commonValues(tree, values);
  const numbers = values.filter((value): value is number => typeof value === "number");
  const isNumeric = numbers.length > 0 && new Set(numbers).size > 6;
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const isLog = isLogSpread(numbers);
  const place = isLog ? Math.log : (value: number) => value;
  const kinds = [...new Set(values.map(String))].sort();
  return common.map((value) => {
    if (value === undefined || value === null) return undefined;
    if (isNumeric && typeof value === "number") return colourScale((place(value) - place(low)) / (place(high) - place(low) || 1));
    return seriesColour(kinds.indexOf(String(value)));
  });
}

interface Axes extends Frame {
  x: Scale;
  y: Scale;
  metric: string;
  rungs: { step: number; name: string }[];
}

export function drawAxes(context: CanvasRenderingContext2D, size: Size, ink: Palette, axes: Axes): void {
  context.textBaseline = "middle";
  drawValues(context, size, ink, axes);
  drawSteps(context, size, ink, axes);
  drawRungs(context, size, ink, axes);
}

function drawValues(context: CanvasRenderingContext2D, size: Size, ink: Palette, { y, domain, isLogY }: Axes): void {
  context.textAlign = "right";
  context.strokeStyle = ink.line;
  context.fillStyle = ink.soft;
  context.lineWidth = 1;
  for (const value of (isLogY ? logTicks : ticks)(domain, 5)) {
    context.beginPath();
    context.moveTo(LEFT, y(value));
    context.lineTo(size.width - RIGHT, y(value));
    context.stroke();
    context.fillText(axisNumber(value), LEFT - 8, y(value));
  }
}

/** The steps of the rungs, and round steps between them. */
function drawSteps(context: CanvasRenderingContext2D, size: Size, ink: Palette, { x, most, isLog, rungs }: Axes): void {
  const line = size.height - BOTTOM + 14;
  context.textAlign = "center";
  context.fillStyle = ink.soft;
  context.fillText("step", (LEFT + size.width - RIGHT) / 2, size.height - 8);
  for (const { step } of rungs) context.fillText(String(step), x(step), line);
  context.fillStyle = ink.faint;
  for (const step of stepTicks(most, isLog)) {
    if (rungs.every((rung) => Math.abs(x(rung.step) - x(step)) > 30)) context.fillText(String(step), x(step), line);
  }
}

/** A vertical line for each rung, and above the lines the metric and the names that fit. */
function drawRungs(context: CanvasRenderingContext2D, size: Size, ink: Palette, { x, metric, rungs }: Axes): void {
  context.strokeStyle = ink.faint;
  context.fillStyle = ink.soft;
  context.textAlign = "left";
  context.fillText(metric, 0, 8);
  context.textAlign = "center";
  context.setLineDash([2, 3]);
  let free = context.measureText(metric).width + 8;
  for (const { step, name } of rungs) {
    context.beginPath();
    context.moveTo(x(step), 16);
    context.lineTo(x(step), size.height - BOTTOM);
    context.stroke();
    const half = context.measureText(name).width / 2;
    const middle = Math.min(x(step), size.width - half - 2);
    if (middle - half < free) continue;
    context.fillText(name, middle, 8);
    free = middle + half + 8;
  }
  context.setLineDash([]);
}

interface Marks {
  x: Scale;
  y: Scale;
  ink: Palette;
  marked: number[];
  colours: (string | undefined)[] | null;
  states: string[];
  most: number;
  best: Best | null;
}

/** The best trial and its result, which may be before its last step. */
export interface Best {
  trial: number;
  step: number;
  value: number;
  text: string;
}

export function drawEnds(context: CanvasRenderingContext2D, ends: End[], marks: Marks): void {
  const { x, y, ink, marked, colours, states, best } = marks;
  context.textAlign = "center";
  context.font = "12px system-ui, sans-serif";
  const isDot = marks.most > DENSITY_LIMIT;
  for (const end of ends) {
    const state = states[end.trial] ?? end.state;
    const isBest = end.trial === best?.trial;
    context.globalAlpha = marked.length && !marked.includes(end.trial) && !isBest ? 0.2 : 1;
    context.fillStyle = isBest ? ink.accent : state === "failed" ? ink.bad : (colours?.[end.node] ?? ink.ink);
    if (end.deviation && !isDot) drawDeviation(context, x(end.step), y(end.value - end.deviation), y(end.value + end.deviation));
    if (isBest && end.step === best.step) continue;
    if (isDot && !marked.includes(end.trial)) context.fillRect(x(end.step) - 1, y(end.value) - 1, 2, 2);
    else context.fillText(STATE_SYMBOLS[state] ?? "●", x(end.step), y(end.value) + 1);
  }
  if (!best) return;
  context.globalAlpha = 1;
  context.fillStyle = ink.accent;
  drawBest(context, x(best.step), y(best.value), `trial ${best.trial}: ${best.text}`, ink);
}

/** An error bar of one standard deviation on each side. */
function drawDeviation(context: CanvasRenderingContext2D, x: number, low: number, high: number): void {
  for (const [width, from, to] of [[1.5, low, high], [7, low - 0.75, low + 0.75], [7, high - 0.75, high + 0.75]] as const) {
    context.fillRect(x - width / 2, Math.min(from, to), width, Math.abs(to - from));
  }
}

/** The star and the label of the best trial, with an outline that keeps the text legible. */
function drawBest(context: CanvasRenderingContext2D, x: number, y: number, text: string, ink: Palette): void {
  context.font = "600 12px system-ui, sans-serif";
  context.textAlign = "right";
  context.lineWidth = 4;
  context.strokeStyle = ink.paper;
  const line = Math.max(TOP + 6, y - 12);
  context.strokeText(text, x - 12, line);
  context.fillText(text, x - 12, line);
  context.textAlign = "center";
  context.font = "bold 18px system-ui, sans-serif";
  context.strokeText("★", x, y + 1);
  context.fillText("★", x, y + 1);
}

export interface Near {
  end?: End;
  segment?: Segment;
}

/** The end, or else the line, near the pointer. */
export function findNearest(drawing: { ends: End[]; segments: Segment[] }, [x, y]: [Scale, Scale], px: number, py: number): Near | null {
  let [best, found]: [number, Near | null] = [REACH_PIXELS, null];
  for (const end of drawing.ends) {
    const away = Math.hypot(x(end.step) - px, y(end.value) - py);
    if (away < best) [best, found] = [away, { end }];
  }
  if (found) return found;
  for (const segment of drawing.segments) {
    const away = distance(px, py, x(segment.x0), y(segment.y0), x(segment.x1), y(segment.y1));
    if (away < best) [best, found] = [away, { segment }];
  }
  return found;
}

function distance(px: number, py: number, ax: number, ay: number, bx: number, by: number): number {
  const length = (bx - ax) ** 2 + (by - ay) ** 2;
  const share = length ? Math.max(0, Math.min(1, ((px - ax) * (bx - ax) + (py - ay) * (by - ay)) / length)) : 0;
  return Math.hypot(px - ax - share * (bx - ax), py - ay - share * (by - ay));
}
