/** Hyper-parameters and results: parallel coordinates with brushing, importance, sequences by shape, and slices. */
import { useMemo } from "preact/hooks";
import { studyPath, isReport, useAnswer } from "../data.ts";
import { count, number, percent } from "../format.ts";
import { createAxis, resultAxis } from "../layout/parallel.ts";
import { basisText, TRIAL_END, defaultRung, rungNames } from "../layout/rungs.ts";
import { robustLogRange, robustRange, spansOrdersOfMagnitude } from "../layout/scales.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Parallel } from "../parts/parallel_canvas.tsx";
import { route, setQuery } from "../route.ts";
import { useTable, type Table } from "../table.ts";
import type { Importance, Rungs } from "../types.ts";
import { Shapes } from "./shapes.tsx";
import { Slices } from "./slices.tsx";
import type { ViewProps } from "./props.ts";

/** With more distinct schedules, their fields are the axes. */
const MAX_KINDS = 12;

/** Tuners that train each trial to its own number of steps. */
const FIXED_LENGTH_TUNERS = new Set(["grid", "random", "trials"]);

export function Relations(props: ViewProps) {
  const table = useTable(props.study.study, props.at);
  return (
    <Loaded answer={table}>
      {(data) => (data.varyingParameters.length ? <RelationPanels {...props} table={data} /> : <p class="quiet">All trials have the same hyper-parameters.</p>)}
    </Loaded>
  );
}

function RelationPanels({ study, at, table }: ViewProps & { table: Table }) {
  const rungs = useAnswer<Rungs>(studyPath(study.study, "/rungs", at));
  const selectedRung = route.value.query["rung"];
  const rung = selectedRung ?? defaultRung(rungs.data);
  const importance = useAnswer<Importance>(rungs.data && studyPath(study.study, "/importance", at, isReport || !selectedRung ? {} : { rung }));
  const values = useMemo(() => rungResults(table, rungs.data, rung), [table, rungs.data, rung]);
  const shares = useMemo(() => importanceByAxis(table, importance.data), [table, importance.data]);
  const names = useMemo(() => axisNames(table, study.tuner).sort((a, b) => (shares.get(b) ?? 0) - (shares.get(a) ?? 0)).slice(0, 10), [table, shares, study.tuner]);
  const axes = useMemo(() => {
    const known = values.filter((value): value is number => value !== null);
    const range = (spansOrdersOfMagnitude(known) ? robustLogRange : robustRange)(known, false, study.mode);
    return [...names.map((name) => createAxis(name, table.column(name), tickText)), resultAxis(study.metric, values, range, tickText)];
  }, [names, table, values, study.metric, study.mode]);
  const named = rungNames(rungs.data);
  const aside = named.length > 1 && (
    <label>
      result at{" "}
      <select value={rung} onChange={(event) => setQuery({ rung: event.currentTarget.value })}>
        <option value={TRIAL_END}>the trial's end</option>
        {named.map(({ rung: each, name }) => (
          <option key={each} value={each}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <>
      <Panel title="Parallel coordinates" aside={aside}>
        <p class="quiet">{basisText(values, rung)}</p>
        <Parallel axes={axes} count={table.count} mode={study.mode} shares={shares} data={{ name: `${study.study}-parallel`, rows: () => trialRows(table, names, study.metric, values) }} />
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
        <p class="quiet">{basisText(values, rung)}</p>
        <Slices study={study.study} axes={axes} table={table} values={values} />
      </Panel>
    </>
  );
}

function trialRows(table: Table, names: string[], metric: string, values: (number | null)[]): (string | number | null)[][] {
  return [["trial", ...names, metric], ...values.map((value, trial) => [trial, ...names.map((name) => table.get(trial, name) as string | number | null), value])];
}

/**
 * One axis for each hyper-parameter, or for each field of its schedules if there are many. The number of steps is an axis
 * too, unless the tuner decides it by results.
 */
function axisNames(table: Table, tuner: string): string[] {
  const names = table.parameters.flatMap((name) => {
    const isFew = name.startsWith("hp.") || new Set(table.column(name)).size <= MAX_KINDS;
    return isFew ? [name] : table.scheduleFields(name);
  });
  return FIXED_LENGTH_TUNERS.has(tuner) && new Set(table.column("steps")).size > 1 ? [...names, "steps"] : names;
}

/** The importance of a schedule is the sum over its fields. */
function importanceByAxis(table: Table, data: Importance | null): Map<string, number> {
  const shares = new Map<string, number>();
  for (const { name, importance } of data?.items ?? []) {
    shares.set(name, importance);
    const shape = table.scheduleColumn(name);
    if (shape) shares.set(shape, (shares.get(shape) ?? 0) + importance);
  }
  return shares;
}

function tickText(value: unknown): string {
  return typeof value === "number" ? number(value, 3) : String(value);
}

/** The result of each trial at a rung, or at its end. */
function rungResults(table: Table, rungs: Rungs | null, rung: string): (number | null)[] {
  if (rung === TRIAL_END) return table.column("value") as (number | null)[];
  const results: (number | null)[] = Array(table.count).fill(null);
  for (const item of rungs?.items ?? []) {
    if (String(item.rung) === rung) item.trials.forEach((trial, index) => (results[trial] = item.values[index] ?? null));
  }
  return results;
}

function Importances({ data }: { data: Importance }) {
  if (data.note) return <p class="quiet">{data.note}</p>;
  const most = Math.max(...data.items.flatMap((item) => item.interval), 1e-9);
  return (
    <>
      <table class="waterfall">
        <tbody>
          {data.items.map((item) => (
            <tr key={item.name} class="run">
              <th scope="row">{item.name.replace(/^hp\./, "")}</th>
              <td class="n">{percent(item.importance)}</td>
              <td class="n quiet">
                {item.interval.map(percent).join(" to ")}
              </td>
              <td class="bar" aria-hidden="true">
                <svg viewBox="0 0 100 10" preserveAspectRatio="none" width="100%" height="14">
                  <rect x="0" y="0" width={(item.importance / most) * 100} height="10" />
                  <path d={`M${(item.interval[0]! / most) * 100} 5H${(item.interval[1]! / most) * 100}`} class="interval" />
                </svg>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="quiet">
        By {data.method}, over {count(data.trials)} trials with a result at {data.rung === null ? "their end" : `rung ${data.rung}`}; beside each share,
        its 90 % bootstrap interval.
      </p>
    </>
  );
}
