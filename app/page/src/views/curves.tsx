/** Learning curves with rungs: the best twenty, those that train now, and those that are chosen. */
import { useMemo, useState } from "preact/hooks";
import { about, useAnswer } from "../data.ts";
import { number } from "../format.ts";
import { bestRows } from "../layout/filter.ts";
import { rungLines } from "../layout/rungs.ts";
import { curveOf, withMeans } from "../layout/rung_tree.ts";
import { robust } from "../layout/scales.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Plot, type Line } from "../parts/plot.tsx";
import { roomFor } from "../parts/room.ts";
import { chosen, route, setQuery, toggleChosen } from "../route.ts";
import { useTable, type Table } from "../table.ts";
import { palette, series } from "../theme.ts";
import type { Rungs, Tree } from "../types.ts";
import { Chosen } from "./chosen.tsx";
import type { ViewProps } from "./props.ts";

const TOP = 20;

export function Curves(props: ViewProps) {
  const { study, at } = props;
  const tree = useAnswer<Tree>(about(study.study, "/tree", at));
  const table = useTable(study.study, at);
  const rungs = useAnswer<Rungs>(about(study.study, "/rungs", at));
  const [near, setNear] = useState("");
  const { x, y, value } = route.value.query;
  const means = useMemo(() => (tree.data ? withMeans(tree.data).means : null), [tree.data]);
  const shown = useMemo(() => (table.data ? wanted(table.data, study.mode, chosen.value) : []), [table.data, study.mode, chosen.value]);
  const lines = useMemo(() => (means ? shown.map((trial, index) => line(means, trial, index, study.best?.trial ?? null)) : []), [means, shown, study.best?.trial, palette.value]);
  const drawn = useMemo(() => lines.filter((each) => each.x.length > 0), [lines]);
  const range = useMemo(() => robust(drawn.flatMap((each) => each.y), value === "all", study.mode), [drawn, value, study.mode]);
  const marks = useMemo(() => rungLines(rungs.data?.items ?? []).map((rung) => ({ x: rung.step, text: rung.name })), [rungs.data]);
  const toggle = (name: string, on: string, text: string) => (
    <label>
      <input type="checkbox" checked={route.value.query[name] === on} onChange={(event) => setQuery({ [name]: event.currentTarget.checked ? on : "" })} /> {text}
    </label>
  );
  return (
    <>
      <Panel title="Learning curves" aside={<>{toggle("x", "log", "log steps")} {toggle("y", "log", "log metric")} {toggle("value", "all", "all values")}</>}>
        <Loaded answer={tree}>
          {() => (
            <>
              <Plot
                label={`${study.metric} by step of ${drawn.length} trials`}
                height={roomFor(320, 340)}
                lines={drawn}
                marks={marks}
                xLabel="step"
                isLogX={x === "log"}
                isLogY={y === "log"}
                range={y === "log" ? null : range}
                from={0}
                onNear={(index, step, value) => setNear(index === null ? "" : `trial ${drawn[index]!.label}: ${number(value)} at step ${step}`)}
                onPick={(index) => toggleChosen(Number(drawn[index]!.label))}
              />
              <p role="status" class="near">
                {near}
              </p>
              <p class="quiet">
                The best {Math.min(TOP, drawn.length)} of {table.data?.count ?? 0} trials, those that train now (dashed), and those that are chosen. Drag to zoom in; double-click to
                zoom out; click a line to choose its trial.
              </p>
            </>
          )}
        </Loaded>
      </Panel>
      <Chosen {...props} />
    </>
  );
}

function wanted(table: Table, mode: string, chosen: number[]): number[] {
  const states = table.column("state");
  const best = bestRows(table, mode).slice(0, TOP);
  const running = states.flatMap((state, row) => (state === "running" ? [row] : [])).slice(0, TOP);
  return [...new Set([...chosen.filter((row) => row < table.count), ...best, ...running])];
}

/** The curve of a trial; means: the tree, of a study with repeats that of their means. */
export function line(means: Tree, trial: number, index: number, best: number | null): Line {
  const { x, y } = curveOf(means, trial);
  const isBest = trial === best;
  const dash = means.trials.state[trial] === "active" ? { dash: [6, 4] } : {};
  return { label: String(trial), colour: isBest ? palette.value.accent : series(index), width: isBest ? 3 : 1.3, x, y, ...dash };
}
