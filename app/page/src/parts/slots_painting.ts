/** Paints slots over time: names, stages, ticks for evaluations and checkpoints, and the time axis. */
import { duration, durationText, percent } from "../format.ts";
import { timeTicks } from "../layout/scales.ts";
import { busyShare, stageSlots, type TimeAxis } from "../layout/timeline.ts";
import { scale as colourScale, type Palette } from "../theme.ts";
import type { Timeline } from "../types.ts";
import type { Size } from "./canvas.tsx";
import { fitHeight } from "./fit_height.ts";

/** Left and top edge of the lanes. */
export const [NAME, TOP] = [92, 22];

export function laneHeight(slots: number): number {
  return Math.max(30, Math.min(72, Math.round(fitHeight(420, 480) / Math.max(1, slots))));
}

interface SlotsDrawing {
  timeline: Timeline;
  names: string[];
  axis: TimeAxis;
  trials: Map<string, number>;
  from: number;
  to: number;
  begin: number;
  x: (at: number) => number;
}

export function paint(context: CanvasRenderingContext2D, size: Size, ink: Palette, drawing: SlotsDrawing): void {
  context.textBaseline = "middle";
  drawNames(context, size, ink, drawing);
  context.save();
  context.beginPath();
  context.rect(NAME, 0, size.width - NAME, size.height);
  context.clip();
  drawSpans(context, size, ink, drawing);
  drawMarks(context, ink, drawing);
  drawTimes(context, size, ink, drawing);
  context.restore();
}

/** The name of each slot and its busy share. */
function drawNames(context: CanvasRenderingContext2D, size: Size, ink: Palette, { timeline, names }: SlotsDrawing): void {
  const lane = laneHeight(names.length);
  names.forEach((name, row) => {
    const y = TOP + row * lane;
    context.fillStyle = ink.line;
    context.globalAlpha = 0.45;
    context.fillRect(NAME, y + 4, size.width - NAME - 4, lane - 10);
    context.globalAlpha = 1;
    context.fillStyle = ink.ink;
    context.fillText(name, 0, y + 12, 56);
    context.fillStyle = ink.soft;
    context.fillText(percent(busyShare(timeline, name)), 0, y + 25, NAME - 10);
  });
}

/** The colour for a number of sharing trials: light for one, and one step darker for each doubling. */
export function sharingColour(trials: number): string {
  return colourScale(0.75 - 0.15 * Math.min(5, Math.log2(trials)));
}

function drawSpans(context: CanvasRenderingContext2D, size: Size, ink: Palette, { timeline, names, trials, x }: SlotsDrawing): void {
  const { spans, at } = timeline;
  const lane = laneHeight(names.length);
  const all = spans.slot.flatMap((_, index) => stageSlots(timeline, index).map((slot) => [slot, index] as const));
  all.forEach(([slot, index]) => {
    const [left, right] = [x(spans.begun_at[index]!), x(spans.ended_at[index] ?? at)];
    if (right < NAME || left > size.width) return;
    const [y, width] = [TOP + names.indexOf(slot) * lane + 4, Math.max(1, right - left - 0.5)];
    const isProof = spans.proof[index] !== null;
    context.fillStyle = spans.own[index] ? sharingColour(trials.get(spans.node[index]!) ?? 1) : ink.faint;
    if (isProof) frame(context, ink, left, y, width, lane - 10);
    else context.fillRect(left, y, width, lane - 10);
    if (!spans.own[index] && !isProof) hatch(context, ink, left, y, width, lane);
    if (["done", "running", "stopped"].includes(spans.outcome[index]!)) return;
    context.fillStyle = ink.bad;
    context.fillRect(right - 2, y - 2, 3, lane - 6);
    context.fillText("✕", right - 4, y - 4);
  });
}

/** Ticks: evaluations at the top of the lane, checkpoints at the bottom. */
function drawMarks(context: CanvasRenderingContext2D, ink: Palette, { timeline, names, x }: SlotsDrawing): void {
  const { spans, marks } = timeline;
  const lane = laneHeight(names.length);
  context.fillStyle = ink.ink;
  marks.at.forEach((at, index) => {
    const y = TOP + names.indexOf(spans.slot[marks.span[index]!]!) * lane;
    context.fillRect(x(at), marks.kind[index] === "evaluated" ? y + 1 : y + lane - 7, 1, 4);
  });
}

/** A dashed frame for a stage that was trained for verification. */
function frame(context: CanvasRenderingContext2D, ink: Palette, left: number, top: number, width: number, height: number): void {
  context.save();
  context.strokeStyle = ink.soft;
  context.lineWidth = 1.5;
  context.setLineDash([4, 3]);
  context.strokeRect(left + 1, top + 1, Math.max(1, width - 2), height - 2);
  context.restore();
}

function hatch(context: CanvasRenderingContext2D, ink: Palette, left: number, top: number, width: number, lane: number): void {
  context.save();
  context.beginPath();
  context.rect(left, top, width, lane - 10);
  context.clip();
  context.strokeStyle = ink.paper;
  context.lineWidth = 2;
  for (let x = left - lane; x < left + width; x += 7) {
    context.beginPath();
    context.moveTo(x, top + lane);
    context.lineTo(x + lane, top);
    context.stroke();
  }
  context.restore();
}

/** Times since the submission, and a dashed line at each hidden idle time. */
function drawTimes(context: CanvasRenderingContext2D, size: Size, ink: Palette, { begin, x, from, to, axis }: SlotsDrawing): void {
  let free = NAME;
  const spacing = (to - from) / (size.width / 110);
  axis.pieces.forEach((piece, index) => {
    const range: [number, number] = [piece.from - begin, piece.to - begin];
    const round = timeTicks(range, (range[1] - range[0]) / spacing);
    context.fillStyle = ink.soft;
    for (const since of index ? [range[0], ...round] : round) {
      const left = x(begin + since);
      if (left >= free && left < size.width - 40) {
        context.fillText(since === range[0] ? duration(since) : durationText(since), left, 9);
        context.fillRect(left, 15, 1, 4);
        free = left + 60;
      }
    }
    if (index === 0) return;
    context.fillStyle = ink.faint;
    for (let y = TOP; y < size.height; y += 6) context.fillRect(x(piece.from) - 2, y, 1, 3);
  });
}
