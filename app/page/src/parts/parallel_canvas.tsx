/** Parallel coordinates: a line for each trial across the axes, and parts of axes that are chosen by dragging. */
import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { count, percent } from "../format.ts";
import { brushed, formatBrushes, parseBrushes, type Axis, type Brushes } from "../layout/parallel.ts";
import { linear, type Scale } from "../layout/scales.ts";
import { route, setQuery } from "../route.ts";
import { isDark, scale as colourScale, type Palette } from "../theme.ts";
import { Canvas, shortened, type Size } from "./canvas.tsx";
import { roomFor } from "./room.ts";

const [TOP, BOTTOM, SIDE] = [44, 44, 46];
/** So far below an axis are the trials that have no value on it. */
const NOTHING_PIXELS = 29;
const MOST_LINES = 3000;
const AXIS_PIXELS = 96;
const REACH_PIXELS = 18;
/** A drag that is shorter, as a share of the axis, is a click. */
const CLICK = 0.015;

interface Props {
  axes: Axis[];
  count: number;
  mode: string;
  shares: Map<string, number>;
}

export function Parallel({ axes, count: all, mode, shares }: Props) {
  const brushes = useMemo(() => parseBrushes(route.value.query["brush"] ?? ""), [route.value.query["brush"]]);
  const rows = useMemo(() => brushed(axes, brushes, all), [axes, brushes, all]);
  const height = roomFor(414, 36, 0.5);
  const [width, setWidth] = useState(600);
  const drag = useRef<{ axis: Axis; from: number } | null>(null);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, drawn: Size, ink: Palette) => {
      setWidth(drawn.width);
      const [x, y] = scalesOf(axes.length, drawn);
      drawTrials(context, ink, axes, { x, y, rows, all, mode });
      axes.forEach((axis, index) => {
        drawAxis(context, ink, axis, x(index), y, brushes[axis.name]);
        writeTitle(context, ink, axis, x(index), drawn.width, shares.get(axis.name));
      });
    },
    [axes, rows, brushes, shares, all, mode, isDark.value],
  );
  const placeAt = (py: number) => Math.min(1, Math.max(0, (height - BOTTOM - py) / (height - TOP - BOTTOM)));
  const [x] = scalesOf(axes.length, { width, height });
  const hold = (event: PointerEvent) => {
    const axis = axes.find((_, index) => Math.abs(x(index) - event.offsetX) < REACH_PIXELS);
    if (axis) drag.current = { axis, from: placeAt(event.offsetY) };
  };
  const release = (event: PointerEvent) => {
    if (drag.current) setQuery({ brush: formatBrushes(after(brushes, drag.current.axis, drag.current.from, placeAt(event.offsetY))) });
    drag.current = null;
  };
  return (
    <>
      <div class="scroll">
        <div class="with-tip" style={{ minWidth: `${axes.length * AXIS_PIXELS}px` }} onPointerDown={hold} onPointerUp={release}>
          <Canvas height={height} draw={draw} class="brush" label={`Parallel coordinates of ${axes.length - 1} hyper-parameters and ${axes.at(-1)!.title}, ${all} trials`} />
        </div>
      </div>
      <Within rows={rows} all={all} isBrushed={Object.keys(brushes).length > 0} />
    </>
  );
}

/** The brushes after a drag along an axis, or a click on it. */
function after(brushes: Brushes, axis: Axis, from: number, to: number): Brushes {
  const { [axis.name]: _, ...others } = brushes;
  return Math.abs(to - from) < CLICK ? others : { ...others, [axis.name]: [Math.min(from, to), Math.max(from, to)] };
}

/** From the number of an axis, and from a place on one, to where they are drawn. */
function scalesOf(axes: number, { width, height }: Size): [Scale, Scale] {
  return [linear([0, Math.max(1, axes - 1)], [SIDE, width - SIDE]), linear([0, 1], [height - BOTTOM, TOP])];
}

function Within({ rows, all, isBrushed }: { rows: number[]; all: number; isBrushed: boolean }) {
  return (
    <p class="buttons">
      <span class="quiet">
        Drag along an axis to filter by it; click it to clear its filter. {count(rows.length)} of {count(all)} trials match.
      </span>
      {isBrushed && (
        <>
          <button onClick={() => setQuery({ trials: rows.slice(0, 50).join(",") })}>choose them</button>
          <button onClick={() => setQuery({ brush: "" })}>clear all</button>
        </>
      )}
    </p>
  );
}

interface Drawn {
  x: Scale;
  y: Scale;
  /** The trials within all brushes, of so many. */
  rows: number[];
  all: number;
  mode: string;
}

/** A line for each trial, those within the brushes above the others; of very many, only the last of those within. */
function drawTrials(context: CanvasRenderingContext2D, ink: Palette, axes: Axis[], { x, y, rows, all, mode }: Drawn): void {
  const results = axes.at(-1)!.places;
  const within = new Set(rows);
  const shown = all > MOST_LINES ? rows.slice(-MOST_LINES) : results.map((_, row) => row);
  for (const row of [...shown].sort((a, b) => Number(within.has(a)) - Number(within.has(b)))) {
    const share = results[row]!;
    const isIn = within.has(row);
    context.strokeStyle = isIn && !Number.isNaN(share) ? colourScale(mode === "min" ? 1 - share : share) : ink.faint;
    context.globalAlpha = isIn ? (all > 300 ? 0.35 : 0.75) : 0.08;
    context.beginPath();
    axes.forEach(({ places }, index) => context.lineTo(x(index), Number.isNaN(places[row]!) ? y(0) + NOTHING_PIXELS : y(places[row]!)));
    context.stroke();
  }
  context.globalAlpha = 1;
}

/** In the middle above its axis, or as near to that as the edges let it be; the importance below the name. */
function writeTitle(context: CanvasRenderingContext2D, ink: Palette, axis: Axis, x: number, width: number, share: number | undefined): void {
  context.font = "600 12px system-ui, sans-serif";
  context.fillStyle = ink.ink;
  const half = Math.min(context.measureText(axis.title).width, AXIS_PIXELS) / 2;
  const middle = Math.min(Math.max(x, half), width - half);
  context.fillText(shortened(context, axis.title, AXIS_PIXELS), middle, 12);
  context.font = "11px system-ui, sans-serif";
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
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 3;
  context.strokeStyle = ink.paper;
  context.fillStyle = ink.soft;
  for (const tick of axis.ticks) {
    const text = shortened(context, tick.text, AXIS_PIXELS);
    context.strokeText(text, x, y(tick.place) + 4);
    context.fillText(text, x, y(tick.place) + 4);
  }
  if (axis.places.some(Number.isNaN)) context.fillText("–", x, y(0) + NOTHING_PIXELS + 4);
  context.lineWidth = 1;
}
