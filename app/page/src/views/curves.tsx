/** Learning curves of the best, the running and the selected trials, with the rungs. */
import { useMemo, useState } from "preact/hooks";
import { studyPath, useAnswer } from "../data.ts";
import { count, number } from "../format.ts";
import { bestRows } from "../layout/filter.ts";
import { rungLines } from "../layout/rungs.ts";
import { trialCurve, meanAndRepeatTrees } from "../layout/rung_tree.ts";
import { isLogAxis, robustLogRange, robustRange } from "../layout/scales.ts";
import { AxisScale } from "../parts/axis_scale.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Plot, type Line } from "../parts/plot.tsx";
import { fitHeight } from "../parts/fit_height.ts";
import { selectedTrials, route, setQuery, toggleTrial } from "../route.ts";
import { parametersText, useTable, type Table } from "../table.ts";
import { palette, seriesColour } from "../theme.ts";
import type { Rungs, Tree } from "../types.ts";
import { SelectedTrials } from "./selected_trials.tsx";
import type { ViewProps } from "./props.ts";

const TOP = 20;

export function Curves(props: ViewProps) {
  const { study, at } = props;
  const tree = useAnswer<Tree>(studyPath(study.study, "/tree", at));
  const table = useTable(study.study, at);
  const rungs = useAnswer<Rungs>(studyPath(study.study, "/rungs", at));
  const [near, setNear] = useState("");
  const { x, y, value } = route.value.query;
  const means = useMemo(() => (tree.data ? meanAndRepeatTrees(tree.data).means : null), [tree.data]);
  const shown = useMemo(() => (table.data ? drawnTrials(table.data, study.mode, selectedTrials.value) : []), [table.data, study.mode, selectedTrials.value]);
  const lines = useMemo(() => (means ? shown.map((trial) => curveLine(means, trial, lineLook(means, trial, study.best?.trial ?? null))) : []), [means, shown, study.best?.trial, palette.value]);
  const drawn = useMemo(() => lines.filter((each) => each.x.length > 0), [lines]);
  const measured = useMemo(() => drawn.flatMap((each) => each.y), [drawn]);
  const isLogY = isLogAxis(measured, y);
  const range = useMemo(() => (isLogY ? robustLogRange : robustRange)(measured, value === "all", study.mode), [measured, isLogY, value, study.mode]);
  const marks = useMemo(() => rungLines(rungs.data?.items ?? []).map((rung) => ({ x: rung.step, text: rung.name })), [rungs.data]);
  const toggle = (name: string, on: string, text: string) => (
    <label>
      <input type="checkbox" checked={route.value.query[name] === on} onChange={(event) => setQuery({ [name]: event.currentTarget.checked ? on : "" })} /> {text}
    </label>
  );
  return (
    <>
      <Panel title="Learning curves" aside={<>{toggle("x", "log", "log steps")} <AxisScale field="y" /> {toggle("value", "all", "all values")}</>}>
        <Loaded answer={tree}>
          {() => (
            <>
              <Plot
                label={`${study.metric} by step of ${drawn.length} trials`}
                height={fitHeight(320, 340)}
                lines={drawn}
                marks={marks}
                xLabel="step"
                yLabel={study.metric}
                file={`${study.study}-curves`}
                isLogX={x === "log"}
                isLogY={isLogY}
                range={range}
                from={0}
                onNear={(index, step, value) => setNear(index === null ? "" : nearText(drawn[index]!.label, value, step, table.data))}
                onPick={(index) => toggleTrial(trialOf(drawn[index]!.label))}
              />
              <p role="status" class="near">
                {near}
              </p>
              <p class="quiet">
                The best {Math.min(TOP, drawn.length)} of {count(table.data?.count ?? 0)} trials, the running trials (dashed) and the selected ones. Drag to zoom in, double-click to
                zoom out, and click a line to select its trial.
              </p>
            </>
          )}
        </Loaded>
      </Panel>
      <SelectedTrials {...props} />
    </>
  );
}

function trialOf(label: string): number {
  return Number(label.replace("trial ", ""));
}

function nearText(label: string, value: number | null, step: number | null, table: Table | null): string {
  const parameters = parametersText(table, trialOf(label));
  return `${label}: ${number(value)} at step ${step}${parameters ? `; ${parameters}` : ""}`;
}

function drawnTrials(table: Table, mode: string, selected: number[]): number[] {
  const states = table.column("state");
  const best = bestRows(table, mode).slice(0, TOP);
  const running = states.flatMap((state, row) => (state === "running" ? [row] : [])).slice(0, TOP);
  return [...new Set([...selected.filter((row) => row < table.count), ...best, ...running])];
}

/** The best trial in the accent, selected ones in colours of their own, and the others in grey: names tell them apart. */
function lineLook(means: Tree, trial: number, best: number | null): Partial<Line> {
  const place = selectedTrials.value.indexOf(trial);
  const dash = means.trials.state[trial] === "active" ? { dash: [6, 4] } : {};
  if (trial === best) return { colour: palette.value.accent, width: 3, ...dash };
  return { colour: place < 0 ? palette.value.soft : seriesColour(place), width: place < 0 ? 1 : 2, ...dash };
}

/** The plot line of a trial. `means` is the tree of means in a study with repeats. */
export function curveLine(means: Tree, trial: number, look: Partial<Line>): Line {
  const { x, y } = trialCurve(means, trial);
  return { label: `trial ${trial}`, colour: palette.value.soft, x, y, ...look };
}
