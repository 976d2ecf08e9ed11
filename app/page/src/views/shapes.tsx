/** Schedules of a hyper-parameter as functions of the step, with good trials drawn above bad ones. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { studyPath, request, type RequestError } from "../data.ts";
import { number } from "../format.ts";
import { Plot, type Line } from "../parts/plot.tsx";
import { route, setQuery } from "../route.ts";
import type { Table } from "../table.ts";
import { palette, scale } from "../theme.ts";
import type { Schedules, Study } from "../types.ts";

const MAX_TRIALS = 24;

export function Shapes({ study, table, values }: { study: Study; table: Table; values: (number | null)[] }) {
  const names = useMemo(() => [...new Set(table.varyingParameters.map((name) => name.split(".")[1]!))], [table]);
  const parameter = route.value.query["shape"] ?? names[0] ?? "";
  const trials = useMemo(() => sampleTrials(values, study.mode), [values, study.mode]);
  const { schedules, error, isLoading } = useSchedules(study.study, trials);
  const lines = useMemo<Line[]>(() => {
    return trials.flatMap((trial, rank) => {
      const schedule = schedules.get(trial)?.items.find((item) => item.name === parameter);
      if (!schedule || schedule.values.some((value) => typeof value !== "number")) return [];
      const share = 1 - rank / Math.max(1, trials.length - 1);
      return [{ label: `trial ${trial}`, colour: scale(share), width: rank === 0 ? 3 : 1.4, isUnnamed: true, x: schedule.steps, y: schedule.values as number[] }];
    });
  }, [schedules, parameter, trials, palette.value]);
  return (
    <>
      <p class="buttons">
        <select aria-label="Hyper-parameter" value={parameter} onChange={(event) => setQuery({ shape: event.currentTarget.value })}>
          {names.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <label>
          <input type="checkbox" checked={route.value.query["shapeY"] === "log"} onChange={(event) => setQuery({ shapeY: event.currentTarget.checked ? "log" : "" })} /> log
        </label>
      </p>
      {error && <p class="trouble">{error}</p>}
      {lines.length > 0 ? (
        <Plot label={`${parameter} over steps, of ${lines.length} trials`} height={200} lines={lines.toReversed()} xLabel="step" yLabel={parameter} file={`${study.study}-${parameter}`} isLogY={route.value.query["shapeY"] === "log"} />
      ) : (
        !error && <p class="quiet">{isLoading ? "Loading …" : `${parameter} is not a number.`}</p>
      )}
      <p class="quiet">
        {trials.length} trials from the best ({number(values[trials[0] ?? 0])}, thick line) to the worst. Brighter is better.
      </p>
    </>
  );
}

/** Up to `MAX_TRIALS` trials, evenly from the best to the worst. */
function sampleTrials(values: (number | null)[], mode: string): number[] {
  const sign = mode === "min" ? 1 : -1;
  const ranked = values.flatMap((value, row) => (value === null ? [] : [row])).sort((a, b) => sign * (values[a]! - values[b]!));
  if (ranked.length <= MAX_TRIALS) return ranked;
  return Array.from({ length: MAX_TRIALS }, (_, index) => ranked[Math.round((index * (ranked.length - 1)) / (MAX_TRIALS - 1))]!);
}

function useSchedules(study: string, trials: number[]) {
  const [schedules, setSchedules] = useState(new Map<number, Schedules>());
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    let isCancelled = false;
    const missing = trials.filter((trial) => !schedules.has(trial));
    Promise.all(missing.map(async (trial) => [trial, await request<Schedules>(studyPath(study, `/trials/${trial}/schedules`, null))] as const)).then(
      (answers) => !isCancelled && answers.length && setSchedules(new Map([...schedules, ...answers])),
      (trouble: RequestError) => !isCancelled && setError(trouble.message),
    );
    return () => void (isCancelled = true);
  }, [study, trials.join(",")]);
  return { schedules, error, isLoading: error === null && trials.some((trial) => !schedules.has(trial)) };
}
