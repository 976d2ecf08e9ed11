/** The Pareto front, as a plot of two metrics and a table. */
import { useCallback, useMemo, useState } from "preact/hooks";
import { count, number, footnoteSigns } from "../format.ts";
import { frontDots, isLowerBetter, metricNames, staircase, type FrontDot } from "../layout/pareto_front.ts";
import { Canvas, Tip } from "../parts/canvas.tsx";
import { frontScales, paintFront } from "../parts/pareto_front_painting.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Footnotes, Mark } from "../parts/states.tsx";
import { route, setQuery, studyLink } from "../route.ts";
import { parametersText, useTable, type Table } from "../table.ts";
import type { Palette } from "../theme.ts";
import type { Study } from "../types.ts";
import type { ViewProps } from "./props.ts";

const [HEIGHT, NEAR, MAX_ROWS] = [320, 14, 12];

/** Null for a study with one metric and no constraints. */
export function FrontCard({ study, at }: ViewProps) {
  return study.metrics || study.constraints ? <Card study={study} at={at} /> : null;
}

function Card({ study, at }: ViewProps) {
  const table = useTable(study.study, at);
  const names = table.data ? metricNames(study, table.data) : [];
  const { frontX, frontY } = route.value.query;
  const x = names.find((name) => name === frontX) ?? names[0] ?? "";
  const y = names.find((name) => name === frontY) ?? names.find((name) => name !== x) ?? x;
  const aside = names.length > 2 && (
    <span class="buttons">
      <Axis label="x axis" names={names} value={x} field="frontX" />
      <Axis label="y axis" names={names} value={y} field="frontY" />
    </span>
  );
  return (
    <Panel title={study.metrics.length > 1 ? "Pareto front" : "Metric and constraints"} class="wide" aside={aside}>
      <Loaded answer={table}>{(data) => (names.length > 1 ? <ParetoPlot study={study} table={data} x={x} y={y} /> : <p class="quiet">No trial has a result yet.</p>)}</Loaded>
    </Panel>
  );
}

function Axis({ label, names, value, field }: { label: string; names: string[]; value: string; field: string }) {
  return (
    <label>
      {label}{" "}
      <select value={value} onChange={(event) => setQuery({ [field]: event.currentTarget.value })}>
        {names.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}

interface ParetoPlotProps {
  study: Study;
  table: Table;
  x: string;
  y: string;
}

function ParetoPlot({ study, table, x, y }: ParetoPlotProps) {
  const dots = useMemo(() => frontDots(table, x, y), [table, x, y]);
  const axes = useMemo(() => [describeAxis(study, x), describeAxis(study, y)] as const, [study.metrics, study.mode, x, y]);
  const edge = useMemo(() => {
    const hasBorder = study.metrics.length === 2 && axes.every(({ isLower }) => isLower !== null);
    return hasBorder ? staircase(dots, axes[0].isLower!, axes[1].isLower!) : [];
  }, [dots, axes, study.metrics.length]);
  const [near, setNear] = useState<{ dot: FrontDot; x: number; y: number; width: number } | null>(null);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, size: { width: number; height: number }, ink: Palette) => paintFront(context, size, ink, { dots, edge, axes, near: near?.dot.trial ?? null }),
    [dots, edge, axes, near?.dot.trial],
  );
  const look = (left: number, top: number, event: PointerEvent) => {
    const width = (event.currentTarget as HTMLElement).clientWidth;
    const dot = findNearest(dots, frontScales(dots, { width, height: HEIGHT }), left, top);
    setNear(dot && { dot, x: left, y: top, width });
  };
  const open = () => near && (location.hash = studyLink(study.study, ["trials", String(near.dot.trial)]));
  return (
    <>
      <div class="with-tip">
        <Canvas height={HEIGHT} draw={draw} label={`${y} against ${x} of ${dots.length} trials`} onPoint={look} onLeave={() => setNear(null)} onPick={open} data={{ name: `${study.study}-pareto-front`, rows: () => dotRows(dots, x, y) }} />
        {near && (
          <Tip x={near.x} y={near.y} width={near.width}>
            <b>trial {near.dot.trial}</b> {KIND_TEXTS[near.dot.kind]}
            <p>
              {x} {number(near.dot.x)}, {y} {number(near.dot.y)}
            </p>
            <p>{parametersText(table, near.dot.trial)}</p>
          </Tip>
        )}
      </div>
      <Legend study={study} dots={dots} />
      {study.metrics.length > 1 && <FrontTable study={study} />}
    </>
  );
}

function dotRows(dots: FrontDot[], x: string, y: string): (string | number)[][] {
  return [["trial", x, y, "kind"], ...dots.map((dot) => [dot.trial, dot.x, dot.y, dot.kind])];
}

const KIND_TEXTS = { front: "on the front", dominated: "dominated by another trial", infeasible: "violates a constraint" };

function describeAxis(study: Study, name: string) {
  const isLower = isLowerBetter(study, name);
  return { name, isLower, text: isLower === null ? name : `${name}, ${isLower ? "lower" : "higher"} is better` };
}

function findNearest(dots: FrontDot[], [x, y]: ReturnType<typeof frontScales>, left: number, top: number): FrontDot | null {
  let [closest, least]: [FrontDot | null, number] = [null, NEAR];
  for (const dot of dots) {
    const away = Math.hypot(x.place(dot.x) - left, y.place(dot.y) - top);
    if (away < least) [closest, least] = [dot, away];
  }
  return closest;
}

function Legend({ study, dots }: { study: Study; dots: FrontDot[] }) {
  const countOf = (kind: FrontDot["kind"]) => count(dots.filter((dot) => dot.kind === kind).length);
  return (
    <p class="quiet legend">
      <span>
        <b class="front-mark">◆</b> {countOf("front")} on the front
      </span>
      <span>○ {countOf("dominated")} dominated</span>
      {study.constraints.length > 0 && (
        <span>
          <b class="bad">✕</b> {countOf("infeasible")} violate {study.constraints.join(" or ")}
        </span>
      )}
    </p>
  );
}

/** The trials of the front. The server orders them by spread. */
function FrontTable({ study }: { study: Study }) {
  const names = study.metrics.map((each) => each["name"]!);
  const shown = study.front.slice(0, MAX_ROWS);
  const signs = footnoteSigns(shown.map((each) => each.exactness));
  return (
    <div class="scroll">
      <table class="list">
        <thead>
          <tr>
            <th>On the front</th>
            {names.map((name) => (
              <th key={name} class="n">
                {name}
              </th>
            ))}
            <th class="n">Step</th>
          </tr>
        </thead>
        <tbody>
          {shown.map((each) => (
            <tr key={each.trial}>
              <th scope="row">
                <a href={studyLink(study.study, ["trials", String(each.trial)])}>trial {each.trial}</a>
                <Mark text={each.exactness} signs={signs} />
              </th>
              {names.map((name) => (
                <td key={name} class="n">
                  {number(each.metrics[name], 5)}
                </td>
              ))}
              <td class="n">{count(each.steps)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <Footnotes signs={signs} />
      {study.front.length > MAX_ROWS && (
        <p class="quiet">
          <a href={studyLink(study.study, ["trials"], { q: "front:true" })}>all {study.front.length} on the front</a>
        </p>
      )}
    </div>
  );
}
