/** Paints a line plot on any context: the names at the ends of lines in uPlot, and the whole plot for files. */
import { duration, number } from "../format.ts";
import { freeBoxes, labelCapacity, spreadPlaces } from "../layout/end_labels.ts";
import { countHidden, hiddenText, linearScale, logScale, logTicks, ticks, timeTicks, type Scale, type Size } from "../layout/scales.ts";
import type { Palette } from "../theme.ts";
import { namedLines, type Axes, type Line } from "./plot_lines.ts";

const [LEFT, TOP, BOTTOM, RIGHT] = [64, 28, 40, 16];
export const NAME_PIXELS = 68;
const NAME_GAP = 13;
const FONT = "12px system-ui, sans-serif";

interface Frame {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** A line that ends within these pixels of the right edge has its name there. */
const EDGE_PIXELS = 24;

/** The name of each line beside its last point: in the margin moved apart, elsewhere only where there is room. */
export function writeNames(context: CanvasRenderingContext2D, { paper }: Palette, lines: Line[], x: Scale, y: Scale, frame: Frame): void {
  context.font = FONT;
  context.textAlign = "left";
  context.textBaseline = "middle";
  const all = namedLines(lines).map((line) => ({ line, x: x(line.x.at(-1)!), y: y(line.y.at(-1)!) }));
  const shown = all.filter((end) => end.y >= frame.top - 1 && end.y <= frame.bottom + 1 && end.x <= frame.right + 1);
  writeInMargin(context, shown.filter((end) => end.x > frame.right - EDGE_PIXELS), frame);
  writeInside(context, paper, shown.filter((end) => end.x <= frame.right - EDGE_PIXELS));
}

interface End {
  line: Line;
  x: number;
  y: number;
}

function writeInMargin(context: CanvasRenderingContext2D, ends: End[], frame: Frame): void {
  const range: [number, number] = [frame.top + 6, frame.bottom - 4];
  const shown = ends.slice(0, labelCapacity(NAME_GAP, range));
  const places = spreadPlaces(shown.map((end) => end.y), NAME_GAP, range);
  shown.forEach(({ line, x, y }, index) => {
    context.strokeStyle = context.fillStyle = line.colour;
    context.lineWidth = 0.7;
    strokeLine(context, x + 3, y, frame.right + 8, places[index]!);
    context.fillText(line.label, frame.right + 11, places[index]!);
  });
}

function writeInside(context: CanvasRenderingContext2D, paper: string, ends: End[]): void {
  const boxes = ends.map(({ line, x, y }) => ({ x: x + 6, y, width: context.measureText(line.label).width }));
  const isFree = freeBoxes(boxes, NAME_GAP);
  ends.forEach(({ line }, index) => {
    if (!isFree[index]) return;
    const { x, y } = boxes[index]!;
    context.strokeStyle = paper;
    context.lineWidth = 3;
    context.strokeText(line.label, x, y);
    context.fillStyle = line.colour;
    context.fillText(line.label, x, y);
  });
}

export function paintPlot(context: CanvasRenderingContext2D, size: Size, ink: Palette, axes: Axes): void {
  const frame = { left: LEFT, right: size.width - (namedLines(axes.lines).length ? NAME_PIXELS : RIGHT), top: TOP, bottom: size.height - BOTTOM };
  const xs = axes.lines.flatMap((line) => line.x).filter((value) => !axes.isLogX || value > 0);
  const ys = axes.lines.flatMap((line) => line.y);
  const across: [number, number] = xs.length ? [Math.min(axes.isLogX ? Infinity : (axes.from ?? Infinity), ...xs), Math.max(...xs)] : [0, 1];
  const upright: [number, number] = axes.range ?? (ys.length ? [Math.min(...ys), Math.max(...ys)] : [0, 1]);
  const x = (axes.isLogX ? logScale : linearScale)(across, [frame.left, frame.right]);
  const y = (axes.isLogY ? logScale : linearScale)(upright, [frame.bottom, frame.top]);
  paintAxes(context, size, ink, { ...axes, x, y, across, upright, frame });
  context.save();
  context.beginPath();
  context.rect(frame.left, frame.top, frame.right - frame.left, frame.bottom - frame.top);
  context.clip();
  for (const line of axes.lines) paintLine(context, line, x, y);
  context.restore();
  writeNames(context, ink, axes.lines, x, y, frame);
  if (axes.range) writeHidden(context, ink, ys, axes.range, frame);
}

interface Painted extends Axes {
  x: Scale;
  y: Scale;
  across: [number, number];
  upright: [number, number];
  frame: Frame;
}

function paintAxes(context: CanvasRenderingContext2D, size: Size, ink: Palette, { x, y, across, upright, frame, ...axes }: Painted): void {
  context.font = FONT;
  context.textBaseline = "middle";
  context.strokeStyle = ink.line;
  context.fillStyle = ink.soft;
  context.lineWidth = 1;
  context.textAlign = "right";
  for (const tick of (axes.isLogY ? logTicks : ticks)(upright, 5)) {
    strokeLine(context, frame.left, y(tick), frame.right, y(tick));
    context.fillText(number(tick), frame.left - 8, y(tick));
  }
  context.textAlign = "center";
  for (const tick of (axes.isTime ? timeTicks : axes.isLogX ? logTicks : ticks)(across, size.width / 110)) {
    context.fillText(axes.isTime ? duration(tick) : number(tick), x(tick), frame.bottom + 13);
  }
  context.fillText(axes.xLabel, (frame.left + frame.right) / 2, size.height - 9);
  for (const mark of axes.marks ?? []) {
    context.setLineDash([2, 3]);
    strokeLine(context, x(mark.x), frame.top, x(mark.x), frame.bottom);
    context.setLineDash([]);
    context.fillText(mark.text, x(mark.x), frame.top - 8);
  }
  context.textAlign = "left";
  context.fillText(axes.yLabel, 4, 10);
}

function paintLine(context: CanvasRenderingContext2D, line: Line, x: Scale, y: Scale): void {
  context.strokeStyle = line.colour;
  context.lineWidth = line.width ?? 1.5;
  context.setLineDash(line.dash ?? []);
  context.beginPath();
  line.x.forEach((at, index) => {
    if (index && line.isStepped) context.lineTo(x(at), y(line.y[index - 1]!));
    context[index ? "lineTo" : "moveTo"](x(at), y(line.y[index]!));
  });
  context.stroke();
  context.setLineDash([]);
}

function strokeLine(context: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** At each edge the number of points beyond it. */
export function writeHidden(context: CanvasRenderingContext2D, ink: Palette, values: number[], range: [number, number], frame: Frame): void {
  const { above, below } = countHidden(values, range);
  context.fillStyle = ink.warm;
  context.font = FONT;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(hiddenText(above, "above"), frame.right - 4, frame.top + 10);
  context.fillText(hiddenText(below, "below"), frame.right - 4, frame.bottom - 10);
}
