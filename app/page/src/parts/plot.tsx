/** Line plots over steps or time, with uPlot. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { duration, number } from "../format.ts";
import { WHOLE_STEPS, TIME_STEPS } from "../layout/scales.ts";
import { palette } from "../theme.ts";
import { lineRows, namedLines, type Axes, type Line } from "./plot_lines.ts";
import { NAME_PIXELS, paintPlot, writeHidden, writeNames } from "./plot_painting.ts";
import { SaveChart } from "./save_chart.tsx";

export type { Line };

/** Room above the frame for the names of marks. */
const MARK_PIXELS = 22;

interface Props extends Axes {
  label: string;
  height: number;
  /** The name of saved files; without it there is no menu. */
  file?: string;
  /** Called with the line and the point under the pointer. */
  onNear?: (line: number | null, x: number | null, y: number | null) => void;
  onPick?: (line: number) => void;
}

export function Plot(props: Props) {
  const place = useRef<HTMLDivElement>(null);
  const colours = palette.value;
  useEffect(() => {
    const element = place.current!;
    const plot = new uPlot(plotOptions(props, element.clientWidth), alignLines(props.lines), element);
    const observer = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: props.height }));
    observer.observe(element);
    return () => (observer.disconnect(), plot.destroy());
  }, [props.lines, props.isLogX, props.isLogY, props.range, props.marks, colours, props.xLabel]);
  return (
    <>
      <div ref={place} class="plot" role="img" aria-label={props.label} style={{ minHeight: `${props.height}px` }} />
      {props.file && (
        <SaveChart
          data={{ name: props.file, rows: () => lineRows(props) }}
          size={() => ({ width: place.current!.clientWidth, height: props.height })}
          draw={(context, size, ink) => paintPlot(context, size, ink, props)}
        />
      )}
    </>
  );
}

/** uPlot requires the same x values for all lines. */
export function alignLines(lines: Line[]): uPlot.AlignedData {
  if (lines.length === 0) return [[], []];
  return uPlot.join(lines.map((line) => [line.x, line.y]));
}

function plotOptions(props: Props, width: number): uPlot.Options {
  const { soft, line: grid } = palette.value;
  const axis: uPlot.Axis = { stroke: soft, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const format = props.isTime ? duration : number;
  return {
    width,
    height: props.height,
    padding: [props.marks?.length ? MARK_PIXELS : null, namedLines(props.lines).length ? NAME_PIXELS : null, null, null],
    legend: { show: false },
    cursor: { points: { size: 7 }, drag: { x: true, y: false }, focus: { prox: 24 } },
    focus: { alpha: 0.35 },
    scales: {
      x: { time: false, distr: props.isLogX ? 3 : 1, ...(props.isLogX ? {} : { range: (_, low, high) => (low === high ? [0, Math.max(1, high)] : [Math.min(low, props.from ?? low), high]) }) },
      y: { distr: props.isLogY ? 3 : 1, ...(props.range ? { range: props.range } : {}) },
    },
    axes: [
      { ...axis, label: props.xLabel, labelSize: 18, labelFont: "12px system-ui", size: 34, incrs: props.isTime ? TIME_STEPS : WHOLE_STEPS, values: (_, all) => all.map((x) => (x === null ? "" : format(x))) },
      { ...axis, label: props.yLabel, labelSize: 16, labelFont: "12px system-ui", size: 58, values: (_, all) => all.map((y) => (y === null ? "" : number(y))) },
    ],
    series: [{}, ...lineSeries(props.lines)],
    hooks: { draw: [(plot) => drawMarks(plot, props.marks ?? []), (plot) => drawTexts(plot, props)], setSeries: [], ready: [(plot) => reportNearest(plot, props)] },
  };
}

function lineSeries(lines: Line[]): uPlot.Series[] {
  const stepped = uPlot.paths.stepped!({ align: 1 });
  if (lines.length === 0) return [{ show: false }];
  return lines.map((line) => ({
    label: line.label,
    stroke: line.colour,
    width: line.width ?? 1.5,
    spanGaps: true,
    dash: line.dash,
    points: { show: line.x.length < 40, size: 4, fill: line.colour },
    ...(line.isStepped ? { paths: stepped } : {}),
  }));
}

/** Vertical lines, such as rungs, with names above the frame. A name that would overlap the one before is left out. */
function drawMarks(plot: uPlot, marks: { x: number; text: string }[]): void {
  const { ctx: context, bbox } = plot;
  context.save();
  context.strokeStyle = palette.value.faint;
  context.fillStyle = palette.value.soft;
  context.font = `${12 * devicePixelRatio}px system-ui`;
  context.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  context.textAlign = "left";
  const gap = 3 * devicePixelRatio;
  let free = 0;
  for (const mark of marks) {
    const x = plot.valToPos(mark.x, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    context.beginPath();
    context.moveTo(x, bbox.top);
    context.lineTo(x, bbox.top + bbox.height);
    context.stroke();
    const width = context.measureText(mark.text).width;
    const left = Math.min(x - width / 2, bbox.left + bbox.width - width);
    if (left < free) continue;
    context.fillText(mark.text, left, bbox.top - 6 * devicePixelRatio);
    free = left + width + 2 * gap;
  }
  context.restore();
}

/** What uPlot does not draw: the names of lines, and how many points are beyond the edges. */
function drawTexts(plot: uPlot, { lines, range }: Props): void {
  const { ctx: context, bbox } = plot;
  const ratio = devicePixelRatio;
  const frame = { left: bbox.left / ratio, right: (bbox.left + bbox.width) / ratio, top: bbox.top / ratio, bottom: (bbox.top + bbox.height) / ratio };
  context.save();
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  writeNames(context, palette.value, lines, (x) => plot.valToPos(x, "x", true) / ratio, (y) => plot.valToPos(y, "y", true) / ratio, frame);
  if (range) writeHidden(context, palette.value, lines.flatMap((line) => line.y), range, frame);
  context.restore();
}

function reportNearest(plot: uPlot, props: Props): void {
  let near: number | null = null;
  plot.hooks.setSeries = [(_, index) => void (near = index ?? null)];
  plot.hooks.setCursor = [
    () => {
      const index = near ? plot.cursor.idxs?.[near] : null;
      const isOn = near !== null && near > 0 && index !== null && index !== undefined;
      props.onNear?.(isOn ? near! - 1 : null, isOn ? plot.data[0][index!]! : null, isOn ? (plot.data[near!]![index!] ?? null) : null);
    },
  ];
  plot.over.addEventListener("click", () => near !== null && near > 0 && props.onPick?.(near - 1));
}
