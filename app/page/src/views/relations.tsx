/** What has to do with the result: parallel coordinates with brushing, slices, importance, and sequences by shape. */
import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { about, useAnswer } from "../data.ts";
import { count, number, percent } from "../format.ts";
import { axisOf, brushed, formatBrushes, parseBrushes, type Axis } from "../layout/parallel.ts";
import { robust } from "../layout/scales.ts";
import { Canvas, type Size } from "../parts/canvas.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { roomFor } from "../parts/room.ts";
import { route, setQuery } from "../route.ts";
import { useTable, type Table } from "../table.ts";
import { isDark, scale as colourScale, type Palette } from "../theme.ts";
import type { Importance, Rungs } from "../types.ts";
import { Shapes } from "./shapes.tsx";
import { Slices } from "./slices.tsx";
import type { ViewProps } from "./study.tsx";

const [TOP, BOTTOM, SIDE] = [44, 44, 46];
/** Where trials cross an axis on which they have no value. */
const NOTHING = -0.09;
const MOST_LINES = 3000;
const AXIS_PIXELS = 96;

export function Relations(props: ViewProps) {
  const table = useTable(props.study.study, props.at);
  return (
    <Loaded answer={table}>
      {(data) => (data.varied.length ? <Related {...props} table={data} /> : <p class="quiet">All trials have the same hyper-parameters.</p>)}
    </Loaded>
  );
}

function Related({ study, at, table }: ViewProps & { table: Table }) {
  const rungs = useAnswer<Rungs>(about(study.study, "/rungs", at));
  const rung = route.value.query["rung"] ?? "";
  const importance = useAnswer<Importance>(about(study.study, "/importance", at, rung ? { rung } : {}));
  const values = useMemo(() => resultsAt(table, rungs.data, rung), [table, rungs.data, rung]);
  const shares = useMemo(() => new Map((importance.data?.items ?? []).map((item) => [item.name, item.importance])), [importance.data]);
  const names = useMemo(() => [...table.varied].sort((a, b) => (shares.get(b) ?? 0) - (shares.get(a) ?? 0)).slice(0, 10), [table, shares]);
  const axes = useMemo(() => {
    const [low, high] = robust(values.filter((value): value is number => value !== null));
    const shown = values.map((value) => (value === null ? null : Math.min(high, Math.max(low, value))));
    return [...names.map((name) => axisOf(name, table.column(name), text)), axisOf(study.metric, shown, text)];
  }, [names, table, values, study.metric]);
  const numbers = [...new Set((rungs.data?.items ?? []).map((item) => item.rung))].sort((a, b) => a - b);
  const aside = numbers.length > 1 && (
    <label>
      result at{" "}
      <select value={rung} onChange={(event) => setQuery({ rung: event.currentTarget.value })}>
        <option value="">the trial's end</option>
        {numbers.map((each) => (
          <option key={each} value={each}>
            rung {each}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <>
      <Panel title="Parallel coordinates" aside={aside}>
        <Parallel axes={axes} count={table.count} mode={study.mode} shares={shares} />
      </Panel>
      <div class="overview">
        <Panel title="Importance">
          <Loaded answer={importance}>{(data) => <Importances data={data} />}</Loaded>
        </Panel>
        <Panel title="Sequences by shape">
          <Shapes study={study} table={table} values={values} />
        </Panel>
      </div>
      <Panel title="Slices">
        <Slices axes={axes} />
      </Panel>
    </>
  );
}

function text(value: unknown): string {
  return typeof value === "number" ? number(value, 3) : String(value);
}

/** The result of each trial: its value, or what it had at a rung. */
function resultsAt(table: Table, rungs: Rungs | null, rung: string): (number | null)[] {
  if (!rung) return table.column("value") as (number | null)[];
  const found: (number | null)[] = Array(table.count).fill(null);
  for (const item of rungs?.items ?? []) {
    if (String(item.rung) === rung) item.trials.forEach((trial, index) => (found[trial] = item.values[index] ?? null));
  }
  return found;
}

function Importances({ data }: { data: Importance }) {
  if (data.note) return <p class="quiet">{data.note}</p>;
  const most = Math.max(...data.items.map((item) => item.importance), 1e-9);
  return (
    <>
      <table class="waterfall">
        <tbody>
          {data.items.map((item) => (
            <tr key={item.name} class="run">
              <th scope="row">{item.name.replace(/^hp\./, "")}</th>
              <td class="n">{percent(item.importance)}</td>
              <td class="bar" aria-hidden="true">
                <svg viewBox="0 0 100 10" preserveAspectRatio="none" width="100%" height="14">
                  <rect x="0" y="0" width={(item.importance / most) * 100} height="10" />
                </svg>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="quiet">
        By {data.method}, over {count(data.trials)} trials with a result.
      </p>
    </>
  );
}

interface ParallelProps {
  axes: Axis[];
  count: number;
  mode: string;
  shares: Map<string, number>;
}

function Parallel({ axes, count: all, mode, shares }: ParallelProps) {
  const brushes = useMemo(() => parseBrushes(route.value.query["brush"] ?? ""), [route.value.query["brush"]]);
  const rows = useMemo(() => brushed(axes, brushes, all), [axes, brushes, all]);
  const height = roomFor(414, 36, 0.5);
  const [size, setSize] = useState<Size>({ width: 600, height });
  const drag = useRef<{ axis: Axis; from: number } | null>(null);
  const metric = axes.at(-1)!;
  const x = useCallback((index: number, width: number) => SIDE + (index * (width - 2 * SIDE)) / Math.max(1, axes.length - 1), [axes.length]);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, drawn: Size, ink: Palette) => {
      setSize(drawn);
      const wanted = new Set(rows);
      const y = (place: number) => drawn.height - BOTTOM - place * (drawn.height - TOP - BOTTOM);
      const shown = all > MOST_LINES ? rows.slice(-MOST_LINES) : metric.places.map((_, row) => row);
      const order = [...shown].sort((a, b) => Number(wanted.has(a)) - Number(wanted.has(b)));
      for (const row of order) {
        const share = metric.places[row]!;
        const isIn = wanted.has(row);
        context.strokeStyle = isIn && !Number.isNaN(share) ? colourScale(mode === "min" ? 1 - share : share) : ink.faint;
        context.globalAlpha = isIn ? (all > 300 ? 0.35 : 0.75) : 0.08;
        context.beginPath();
        axes.forEach((axis, index) => {
          const place = axis.places[row]!;
          const level = y(Number.isNaN(place) ? NOTHING : place);
          if (index) context.lineTo(x(index, drawn.width), level);
          else context.moveTo(x(index, drawn.width), level);
        });
        context.stroke();
      }
      context.globalAlpha = 1;
      axes.forEach((axis, index) => {
        drawAxis(context, ink, axis, x(index, drawn.width), y, brushes[axis.name]);
        writeTitle(context, ink, axis, x(index, drawn.width), drawn.width, shares.get(axis.name));
      });
    },
    [axes, rows, brushes, shares, all, mode, isDark.value],
  );
  const placeAt = (py: number) => Math.min(1, Math.max(0, (height - BOTTOM - py) / (height - TOP - BOTTOM)));
  const axisAt = (px: number) => axes.find((_, index) => Math.abs(x(index, size.width) - px) < 18);
  return (
    <>
      <div class="scroll">
        <div
          class="with-tip"
          style={{ minWidth: `${axes.length * AXIS_PIXELS}px` }}
          onPointerDown={(event) => {
            const axis = axisAt(event.offsetX);
            if (axis) drag.current = { axis, from: placeAt(event.offsetY) };
          }}
          onPointerUp={(event) => {
            const held = drag.current;
            drag.current = null;
            if (!held) return;
            const to = placeAt(event.offsetY);
            const next = { ...brushes };
            if (Math.abs(to - held.from) < 0.015) delete next[held.axis.name];
            else next[held.axis.name] = [Math.min(held.from, to), Math.max(held.from, to)];
            setQuery({ brush: formatBrushes(next) });
          }}
        >
          <Canvas height={height} draw={draw} class="brush" label={`Parallel coordinates of ${axes.length - 1} hyper-parameters and ${metric.title}, ${all} trials`} />
        </div>
      </div>
      <p class="buttons">
        <span class="quiet">
          Drag along an axis to choose a part of it; click it to let go. {count(rows.length)} of {count(all)} trials are within.
        </span>
        {Object.keys(brushes).length > 0 && (
          <>
            <button onClick={() => setQuery({ trials: rows.slice(0, 50).join(",") })}>choose them</button>
            <button onClick={() => setQuery({ brush: "" })}>let go of all</button>
          </>
        )}
      </p>
    </>
  );
}

/** In the middle above its axis, or as near to that as the edges let it be; the importance below the name. */
function writeTitle(context: CanvasRenderingContext2D, ink: Palette, axis: Axis, x: number, width: number, share: number | undefined): void {
  context.font = "600 12px system-ui, sans-serif";
  context.fillStyle = ink.ink;
  const half = Math.min(context.measureText(axis.title).width, AXIS_PIXELS) / 2;
  const middle = Math.min(Math.max(x, half), width - half);
  context.fillText(axis.title, middle, 12, AXIS_PIXELS);
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
    context.strokeText(tick.text, x, y(tick.place) + 4, 90);
    context.fillText(tick.text, x, y(tick.place) + 4, 90);
  }
  if (axis.places.some(Number.isNaN)) context.fillText("–", x, y(NOTHING) + 4);
  context.lineWidth = 1;
}
