/** Paints a Pareto front: axes, its border, and one mark per trial. */
import { axisNumber, plural } from "../format.ts";
import type { FrontDot } from "../layout/pareto_front.ts";
import { linearScale, logScale, logTicks, robustRange, robustLogRange, spansOrdersOfMagnitude, ticks, type Scale } from "../layout/scales.ts";
import type { Palette } from "../theme.ts";
import type { Size } from "./canvas.tsx";

const [LEFT, RIGHT, TOP, BOTTOM] = [62, 16, 24, 42];

interface PaintedAxis {
  place: Scale;
  ticks: number[];
  isInside: (value: number) => boolean;
}

export interface ParetoPicture {
  dots: FrontDot[];
  edge: [number, number][];
  axes: readonly { text: string; isLower: boolean | null }[];
  near: number | null;
}

/** Scales that show the whole front and nearly all trials. Outliers are outside of the frame, and counted there. */
export function frontScales(dots: FrontDot[], { width, height }: Size): [PaintedAxis, PaintedAxis] {
  const front = dots.filter((dot) => dot.kind === "front");
  const across = axis(dots.map((dot) => dot.x), front.map((dot) => dot.x), [LEFT, width - RIGHT], Math.max(2, width / 110));
  return [across, axis(dots.map((dot) => dot.y), front.map((dot) => dot.y), [height - BOTTOM, TOP], 5)];
}

function axis(values: number[], front: number[], range: [number, number], tickCount: number): PaintedAxis {
  const isLog = spansOrdersOfMagnitude(values);
  const [a, b] = isLog ? robustLogRange(values) : robustRange(values);
  const [low, high] = [Math.min(a, ...front), Math.max(b, ...front)];
  const scale = (isLog ? logScale : linearScale)([low, high], range);
  return { place: scale, ticks: (isLog ? logTicks : ticks)([low, high], tickCount), isInside: (value) => low <= value && value <= high };
}

export function paintFront(context: CanvasRenderingContext2D, size: Size, ink: Palette, picture: ParetoPicture): void {
  const [x, y] = frontScales(picture.dots, size);
  paintAxes(context, size, ink, x, y, picture.axes);
  context.strokeStyle = ink.accent;
  context.lineWidth = 1.5;
  context.beginPath();
  picture.edge.forEach(([a, b], index) => context[index ? "lineTo" : "moveTo"](x.place(a), y.place(b)));
  context.stroke();
  const inside = picture.dots.filter((dot) => x.isInside(dot.x) && y.isInside(dot.y));
  writeHidden(context, size, ink, picture.dots.length - inside.length);
  for (const kind of ["dominated", "infeasible", "front"] as const) {
    for (const dot of inside) if (dot.kind === kind) mark(context, ink, kind, x.place(dot.x), y.place(dot.y), dot.trial === picture.near);
  }
}

function paintAxes(context: CanvasRenderingContext2D, { width, height }: Size, ink: Palette, x: PaintedAxis, y: PaintedAxis, axes: ParetoPicture["axes"]): void {
  context.lineWidth = 1;
  context.strokeStyle = ink.line;
  context.fillStyle = ink.soft;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const tick of y.ticks) {
    line(context, LEFT, y.place(tick), width - RIGHT, y.place(tick));
    context.fillText(axisNumber(tick), LEFT - 8, y.place(tick));
  }
  context.textAlign = "center";
  for (const tick of x.ticks) {
    line(context, x.place(tick), TOP, x.place(tick), height - BOTTOM);
    context.fillText(axisNumber(tick), x.place(tick), height - BOTTOM + 12);
  }
  context.fillText(axes[0]!.text, (LEFT + width - RIGHT) / 2, height - 8);
  context.textAlign = "left";
  context.fillText(axes[1]!.text, 4, 10);
}

function writeHidden(context: CanvasRenderingContext2D, size: Size, ink: Palette, hidden: number): void {
  if (hidden === 0) return;
  context.fillStyle = ink.warm;
  context.textAlign = "right";
  context.fillText(`${plural(hidden, "trial")} outside the frame`, size.width - RIGHT, 10);
}

function line(context: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** A diamond for a trial on the front, a ring for a dominated one, a cross for a violated constraint. */
function mark(context: CanvasRenderingContext2D, ink: Palette, kind: FrontDot["kind"], x: number, y: number, isNear: boolean): void {
  const size = isNear ? 7 : 4.5;
  context.beginPath();
  if (kind === "front") {
    context.fillStyle = ink.accent;
    [[0, -size], [size, 0], [0, size], [-size, 0]].forEach(([a, b], index) => context[index ? "lineTo" : "moveTo"](x + a!, y + b!));
    context.fill();
    return;
  }
  context.strokeStyle = kind === "infeasible" ? ink.bad : ink.soft;
  context.lineWidth = 1.3;
  if (kind === "dominated") context.arc(x, y, size - 1, 0, 7);
  else for (const turn of [1, -1]) [context.moveTo(x - size + 1, y - turn * (size - 1)), context.lineTo(x + size - 1, y + turn * (size - 1))];
  context.stroke();
}
