/** The rung tree, with its controls and its legend. */
import { useMemo, useState } from "preact/hooks";
import { canWrite, isReport, studyPath, useAnswer } from "../data.ts";
import { STATE_SYMBOLS, number, plural, deviationText } from "../format.ts";
import { lastDecisions, rungLines } from "../layout/rungs.ts";
import type { BranchPoint, End } from "../layout/rung_tree.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { AxisScale } from "../parts/axis_scale.tsx";
import { fitHeight } from "../parts/fit_height.ts";
import { RungTreeCanvas, treeTitle } from "../parts/rung_tree_canvas.tsx";
import { DENSITY_LIMIT, type Best } from "../parts/rung_tree_painting.ts";
import { selectedTrials, route, setQuery, studyLink, toggleTrial } from "../route.ts";
import { columnTitle, parametersText, useTable, type Table } from "../table.ts";
import { resultOf, type History, type Rungs, type Study, type Tree } from "../types.ts";
import { BranchForm } from "./branch.tsx";
import { SelectedTrials } from "./selected_trials.tsx";
import type { ViewProps } from "./props.ts";

export function RungTreeView(props: ViewProps) {
  return (
    <>
      <Panel title={treeTitle(props.study.progress.rungs)} aside={<Controls {...props} />}>
        <RungTreeDrawing {...props} height={fitHeight(320, 330)} />
        <Legend {...props} />
        <p class="quiet key">Click the end of a line, or use the arrow keys and Enter, to select its trial{canWrite.value && !isReport && props.at === null && "; click a line to branch off there"}.</p>
      </Panel>
      <SelectedTrials {...props} />
    </>
  );
}

/** The small rung tree of the overview. */
export function RungTreeCard(props: ViewProps) {
  return (
    <Panel title={treeTitle(props.study.progress.rungs)} class="wide" aside={<Links {...props} />}>
      <RungTreeDrawing {...props} height={fitHeight(300, 330)} />
      <Legend {...props} />
    </Panel>
  );
}

function Links({ study }: ViewProps) {
  return (
    <>
      <a href={studyLink(study.study, ["film"])}>▶ film</a> <a href={studyLink(study.study, ["tree"])}>larger</a>
    </>
  );
}

function Legend({ study, at }: ViewProps) {
  const tree = useAnswer<Tree>(studyPath(study.study, "/tree", at));
  const { data: table } = useTable(study.study, at);
  if (!tree.data || !isMeasured(tree.data)) return null;
  return (
    <p class="quiet key">
      The more trials share a line, the thicker it is; dashed before the first measurement. ★ best{endsText(table?.column("state") ?? [])}
      {tree.data?.trials.repeats?.some((each) => each.length) && " · thin lines: each repeat · error bars: their standard deviation"}
      {tree.data?.trials.average_of?.some((parts) => parts.length) && " · ◆ mean of the states at the dotted lines"}
    </p>
  );
}

function isMeasured({ nodes }: Tree): boolean {
  return nodes.steps.some((steps) => steps.length > 0);
}

/** What the ends of the lines are: the symbols of the states that there are; with many trials, dots. */
function endsText(states: unknown[]): string {
  if (states.length > DENSITY_LIMIT) return " · dots: the ends of trials";
  return ["completed", "pruned", "failed", "running", "waiting", "paused", "cancelled"].filter((state) => states.includes(state)).map((state) => ` · ${STATE_SYMBOLS[state]} ${state === "completed" ? "trained" : state}`).join("");
}

function Controls({ study, at }: ViewProps) {
  const { data } = useTable(study.study, at);
  const query = route.value.query;
  return (
    <>
      <a href={studyLink(study.study, ["film"])}>▶ film</a>
      <label>
        colour{" "}
        <select value={query["colour"] ?? ""} onChange={(event) => setQuery({ colour: event.currentTarget.value })}>
          <option value="">the best trial</option>
          {(data ? [...new Set([...data.parameters, ...data.varyingParameters])] : []).map((name) => (
            <option key={name} value={name}>
              {columnTitle(name)}
            </option>
          ))}
        </select>
      </label>
      <label>
        <input type="checkbox" checked={query["x"] !== "linear"} onChange={(event) => setQuery({ x: event.currentTarget.checked ? "" : "linear" })} /> log
        steps
      </label>
      <AxisScale field="scale" />
      <label>
        <input type="checkbox" checked={query["y"] === "all"} onChange={(event) => setQuery({ y: event.currentTarget.checked ? "all" : "" })} /> all values
      </label>
    </>
  );
}

function RungTreeDrawing({ study, at, height }: ViewProps & { height: number }) {
  const tree = useAnswer<Tree>(studyPath(study.study, "/tree", at));
  const table = useTable(study.study, at);
  const rungs = useAnswer<Rungs>(studyPath(study.study, "/rungs", at));
  const history = useAnswer<History>(studyPath(study.study, "/history", at));
  const lines = useMemo(() => rungLines(rungs.data?.items ?? []), [rungs.data]);
  const ends = useMemo(() => lastDecisions(history.data), [history.data]);
  const best = useMemo(() => bestResult(study), [study]);
  const [branched, setBranched] = useState<BranchPoint | null>(null);
  const canBranch = canWrite.value && !isReport && at === null;
  const { colour, x, y, scale } = route.value.query;
  return (
    <Loaded answer={tree}>
      {(data) =>
        !isMeasured(data) ? (
          <p class="quiet">No measurements yet. {plural(data.trials.node.length, "trial")} requested.</p>
        ) : (
          <>
            <RungTreeCanvas
              tree={data}
              mode={study.mode}
              metric={study.metric}
              height={height}
              rungs={lines}
              best={best}
              selected={selectedTrials.value}
              isLog={x !== "linear"}
              isWhole={y === "all"}
              scale={scale}
              values={colour && table.data ? table.data.column(colour) : null}
              states={(table.data?.column("state") as string[] | undefined) ?? data.trials.state}
              describeEnd={(end) => <EndTip end={end} study={study} table={table.data} event={ends.get(end.trial)} />}
              toggle={toggleTrial}
              branch={canBranch ? setBranched : null}
              file={`${study.study}-tree`}
            />
            {branched && <BranchForm study={study} {...branched} steps={data.trials.steps[branched.trial]!} close={() => setBranched(null)} />}
          </>
        )
      }
    </Loaded>
  );
}

function bestResult(study: Study): Best | null {
  const result = study.best && resultOf(study, study.best);
  return result && { trial: study.best!.trial, step: result.step, value: result.value, text: `${number(result.value)} ${deviationText(result)}`.trim() };
}

function EndTip({ end, study, table, event }: { end: End; study: Study; table: Table | null; event: number | undefined }) {
  const isMean = Number(table?.get(end.trial, "last.repeats") ?? 1) > 1;
  return (
    <>
      <b>trial {end.trial}</b> {study.metric} {number(end.value)}
      {isMean && ` ± ${number(end.deviation ?? 0, 2)}`} at step {end.step}
      {isMean && ", the mean of its repeats"}
      {table && <p>{parametersText(table, end.trial)}</p>}
      {table && <p class="quiet">{String(table.get(end.trial, "standing") ?? "")}</p>}
      {event !== undefined && <p class="quiet">event {event}</p>}
    </>
  );
}
