/** Parallel coordinates: a line for each trial across the axes, and brushes made by dragging along an axis. */
import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { count, percent } from "../format.ts";
import { brushedRows, formatBrushes, parseBrushes, type Axis, type Brushes } from "../layout/parallel.ts";
import { linearScale, type Scale } from "../layout/scales.ts";
import { route, setQuery } from "../route.ts";
import { isDark, scale as colourScale, type Palette } from "../theme.ts";
import { Canvas, shortenText, type Size } from "./canvas.tsx";
import { fitHeight } from "./fit_height.ts";
import { SaveChart, type ChartData } from "./save_chart.tsx";

const [TOP, BOTTOM, SIDE] = [44, 44, 46];
/** Trials without a value are drawn this far below the axis. */
const MISSING_PIXELS = 29;
const MAX_LINES = 3000;
const AXIS_PIXELS = 96;
const REACH_PIXELS = 18;
/** A shorter drag is a click. */
const MIN_DRAG_SHARE = 0.015;

interface Props {
  axes: Axis[];
  count: number;
  mode: string;
  shares: Map<string, number>;
  data: ChartData;
}

export function Parallel({ axes, count: all, mode, shares, data }: Props) {
  const brushes = useMemo(() => parseBrushes(route.value.query["brush"] ?? ""), [route.value.query["brush"]]);
  const rows = useMemo(() => brushedRows(axes, brushes, all), [axes, brushes, all]);
  const height = fitHeight(414, 36, 0.5);
  const [width, setWidth] = useState(600);
  const drag = useRef<{ axis: Axis; from: number } | null>(null);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, canvasSize: Size, ink: Palette) => {
      setWidth(canvasSize.width);
      const [x, y] = axisScales(axes.length, canvasSize);
      drawTrials(context, ink, axes, { x, y, rows, all, mode });
      axes.forEach((axis, index) => {
        drawAxis(context, ink, axis, x(index), y, brushes[axis.name]);
        writeTitle(context, ink, axis, x(index), canvasSize.width, shares.get(axis.name));
      });
    },
    [axes, rows, brushes, shares, all, mode, isDark.value],
  );
  const placeAt = (py: number) => Math.min(1, Math.max(0, (height - BOTTOM - py) / (height - TOP - BOTTOM)));
  const [x] = axisScales(axes.length, { width, height });
  const startDrag = (event: PointerEvent) => {
    const axis = axes.find((_, index) => Math.abs(x(index) - event.offsetX) < REACH_PIXELS);
    if (axis) drag.current = { axis, from: placeAt(event.offsetY) };
  };
  const endDrag = (event: PointerEvent) => {
    if (drag.current) setQuery({ brush: formatBrushes(applyDrag(brushes, drag.current.axis, drag.current.from, placeAt(event.offsetY))) });
    drag.current = null;
  };
  return (
    <>
      <div class="scroll">
        <div class="with-tip" style={{ minWidth: `${axes.length * AXIS_PIXELS}px` }} onPointerDown={startDrag} onPointerUp={endDrag}>
          <Canvas height={height} draw={draw} class="brush" label={`Parallel coordinates of ${axes.length - 1} hyper-parameters and ${axes.at(-1)!.title}, ${all} trials`} />
        </div>
      </div>
      <SaveChart data={data} size={() => ({ width, height })} draw={draw} />
      <BrushSummary rows={rows} all={all} isBrushed={Object.keys(brushes).length > 0} />
    </>
  );
}

/** The brushes after a drag; a click removes the brush of the axis. */
function applyDrag(brushes: Brushes, axis: Axis, from: number, to: number): Brushes {
  const { [axis.name]: _, ...others } = brushes;
  return Math.abs(to - from) < MIN_DRAG_SHARE ? others : { ...others, [axis.name]: [Math.min(from, to), Math.max(from, to)] };
}

/** x from the index of an axis, y from a position on it. */
function axisScales(axes: number, { width, height }: Size): [Scale, Scale] {
  return [linearScale([0, Math.max(1, axes - 1)], [SIDE, width - SIDE]), linearScale([0, 1], [height - BOTTOM, TOP])];
}

function BrushSummary({ rows, all, isBrushed }: { rows: number[]; all: number; isBrushed: boolean }) {
  return (
    <p class="buttons">
      <span class="quiet">
        Drag along an axis to filter by it; click it to clear its filter. {count(rows.length)} of {count(all)} trials match.
      </span>
      {isBrushed && (
        <>
          <button onClick={() => setQuery({ trials: rows.slice(0, 50).join(",") })}>select them</button>
          <button onClick={() => setQuery({ brush: "" })}>clear all</button>
        </>
      )}
    </p>
  );
}

interface TrialLines {
  x: Scale;
  y: Scale;
  /** The trials within all brushes. */
  rows: number[];
  /** The number of all trials. */
  all: number;
  mode: string;
}

/** Up to this many trials, lines are not made fainter. */
const DENSITY_LIMIT = 300;

/** A line for each trial, those within the brushes on top, and of these those with a result. Over `MAX_LINES` trials only the last of these are drawn. */
function drawTrials(context: CanvasRenderingContext2D, ink: Palette, axes: Axis[], { x, y, rows, all, mode }: TrialLines): void {
  const results = axes.at(-1)!.positions;
  const within = new Set(rows);
  const shown = all > MAX_LINES ? rows.slice(-MAX_LINES) : results.map((_, row) => row);
  const rank = (row: number) => 2 * Number(within.has(row)) + Number(!Number.isNaN(results[row]!));
  const density = Math.min(1, DENSITY_LIMIT / all);
  for (const row of [...shown].sort((a, b) => rank(a) - rank(b))) {
    const share = results[row]!;
    const isIn = within.has(row);
    context.strokeStyle = isIn && !Number.isNaN(share) ? colourScale(mode === "min" ? 1 - share : share) : ink.faint;
    context.globalAlpha = isIn ? (Number.isNaN(share) ? 0.5 * density : Math.max(0.35, 0.75 * density)) : 0.08 * density;
    context.beginPath();
    axes.forEach(({ positions }, index) => context.lineTo(x(index), Number.isNaN(positions[row]!) ? y(0) + MISSING_PIXELS : y(positions[row]!)));
    context.stroke();
  }
  context.globalAlpha = 1;
}

/** The name and the importance above the axis, kept within the canvas. */
function writeTitle(context: CanvasRenderingContext2D, ink: Palette, axis: Axis, x: number, width: number, share: number | undefined): void {
  context.font = "600 12px system-ui, sans-serif";
  context.fillStyle = ink.ink;
  const half = Math.min(context.measureText(axis.title).width, AXIS_PIXELS) / 2;
  const middle = Math.min(Math.max(x, half), width - half);
  context.fillText(shortenText(context, axis.title, AXIS_PIXELS), middle, 12);
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = ink.soft;
  if (share !== undefined) context.fillText(percent(share), middle, 26);
}

function drawAxis(context: CanvasRenderingContext2D, ink: Palette, axis: Axis, x: number, y: (place: number) => number, brush: [number, number] | undefined): void {
  context.strokeStyle = ink.soft;
  context.beginPath();
  context.moveTo(x, y(0));
  context.lineTo(x, y(1));
  context.stroke();
  if (brush) {
    context.fillStyle = ink.accent;
    context.globalAlpha = 0.3;
    context.fillRect(x - 6, y(brush[1]), 12, y(brush[0]) - y(brush[1]));
    context.globalAlpha = 1;
  }
  context.textAlign = "center";
  context.font = "12px system-ui, sans-serif";
  context.lineWidth = 3;
  context.strokeStyle = ink.paper;
  context.fillStyle = ink.soft;
  for (const tick of axis.ticks) {
    const text = shortenText(context, tick.text, AXIS_PIXELS);
    context.strokeText(text, x, y(tick.place) + 4);
    context.fillText(text, x, y(tick.place) + 4);
  }
  if (axis.positions.some(Number.isNaN)) context.fillText("–", x, y(0) + MISSING_PIXELS + 4);
  context.lineWidth = 1;
}
