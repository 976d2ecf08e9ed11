/** A scatter plot of the result against each hyper-parameter. */
import { useCallback, useState } from "preact/hooks";
import { number } from "../format.ts";
import type { Axis } from "../layout/parallel.ts";
import type { Size } from "../layout/scales.ts";
import { Canvas, shortenText, Tip } from "../parts/canvas.tsx";
import type { ChartData } from "../parts/save_chart.tsx";
import { studyLink } from "../route.ts";
import { parametersText, type Table } from "../table.ts";
import type { Palette } from "../theme.ts";

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [190, 52, 14, 24, 40];
const [REACH_PIXELS, MAX_SPREAD_KINDS] = [12, 6];

interface Props {
  study: string;
  axes: Axis[];
  table: Table;
  values: (number | null)[];
}

export function Slices({ axes, ...props }: Props) {
  const metric = axes.at(-1)!;
  return (
    <div class="slices">
      {axes.slice(0, -1).map((axis) => (
        <Slice key={axis.name} {...props} axis={axis} metric={metric} />
      ))}
    </div>
  );
}

interface SliceProps extends Omit<Props, "axes"> {
  axis: Axis;
  metric: Axis;
}

interface Near {
  trial: number;
  x: number;
  y: number;
  width: number;
}

function Slice({ study, axis, metric, table, values }: SliceProps) {
  const [near, setNear] = useState<Near | null>(null);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, size: Size, ink: Palette) => {
      paintAxes(context, size, ink, axis, metric);
      context.fillStyle = ink.accent;
      context.globalAlpha = axis.positions.length > 500 ? 0.25 : 0.6;
      axis.positions.forEach((_, row) => {
        const place = dotPlace(axis, metric, row, size);
        if (!place) return;
        context.beginPath();
        context.arc(place[0], place[1], 2.2, 0, 7);
        context.fill();
      });
      context.globalAlpha = 1;
    },
    [axis, metric],
  );
  const look = (x: number, y: number, event: PointerEvent) => {
    const width = (event.currentTarget as HTMLElement).clientWidth;
    const trial = nearestRow(axis, metric, { width, height: HEIGHT }, x, y);
    setNear(trial === null ? null : { trial, x, y, width });
  };
  const open = () => near && (location.hash = studyLink(study, ["trials", String(near.trial)]));
  const data: ChartData = { name: `${study}-${axis.title}`, rows: () => [["trial", axis.title, metric.title], ...values.map((value, row) => [row, table.get(row, axis.name) as string | number | null, value])] };
  return (
    <figure class="with-tip">
      <figcaption>{axis.title}</figcaption>
      <Canvas height={HEIGHT} draw={draw} label={`${metric.title} against ${axis.title}`} onPoint={look} onLeave={() => setNear(null)} onPick={open} data={data} />
      {near && (
        <Tip x={near.x} y={near.y} width={near.width}>
          <b>trial {near.trial}</b> {metric.title} {number(values[near.trial])}
          <p>{parametersText(table, near.trial)}</p>
        </Tip>
      )}
    </figure>
  );
}

/** Dots of few distinct values are spread aside, so that equal ones are seen. */
function dotPlace(axis: Axis, metric: Axis, row: number, { width, height }: Size): [number, number] | null {
  const [place, result] = [axis.positions[row]!, metric.positions[row]!];
  if (Number.isNaN(place) || Number.isNaN(result)) return null;
  const aside = axis.ticks.length <= MAX_SPREAD_KINDS && axis.isKinds ? (((row * 7919) % 13) - 6) * 1.5 : 0;
  return [LEFT + 12 + place * (width - LEFT - RIGHT - 24) + aside, TOP + (1 - result) * (height - TOP - BOTTOM)];
}

function nearestRow(axis: Axis, metric: Axis, size: Size, x: number, y: number): number | null {
  let [found, least]: [number | null, number] = [null, REACH_PIXELS];
  axis.positions.forEach((_, row) => {
    const place = dotPlace(axis, metric, row, size);
    const away = place ? Math.hypot(place[0] - x, place[1] - y) : Infinity;
    if (away < least) [found, least] = [row, away];
  });
  return found;
}

function paintAxes(context: CanvasRenderingContext2D, { width, height }: Size, ink: Palette, axis: Axis, metric: Axis): void {
  const bottom = height - BOTTOM;
  context.textBaseline = "middle";
  context.lineWidth = 1;
  context.strokeStyle = ink.line;
  context.fillStyle = ink.soft;
  context.textAlign = "right";
  for (const tick of metric.ticks) {
    const y = TOP + (1 - tick.place) * (bottom - TOP);
    context.beginPath();
    context.moveTo(LEFT, y);
    context.lineTo(width - RIGHT, y);
    context.stroke();
    context.fillText(tick.text, LEFT - 6, y);
  }
  for (const tick of axis.ticks.length > 3 ? [axis.ticks[0]!, axis.ticks.at(-1)!] : axis.ticks) {
    context.textAlign = tick.place < 0.2 ? "left" : tick.place > 0.8 ? "right" : "center";
    context.fillText(shortenText(context, tick.text, width / 2 - 30), LEFT + tick.place * (width - LEFT - RIGHT), bottom + 14);
  }
  context.textAlign = "center";
  context.fillText(shortenText(context, axis.title, width - LEFT), (LEFT + width - RIGHT) / 2, height - 8);
  context.textAlign = "left";
  context.fillText(shortenText(context, metric.title, width - 8), 2, 9);
}
