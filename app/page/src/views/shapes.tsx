/** Hyper-parameters that move, as what they are: functions of the step, those of good trials above those of bad ones. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { about, ask, type Trouble } from "../data.ts";
import { number } from "../format.ts";
import { Plot, type Line } from "../parts/plot.tsx";
import { route, setQuery } from "../route.ts";
import type { Table } from "../table.ts";
import { palette, scale } from "../theme.ts";
import type { Schedules, Study } from "../types.ts";

const MOST = 24;

export function Shapes({ study, table, values }: { study: Study; table: Table; values: (number | null)[] }) {
  const names = useMemo(() => [...new Set(table.varied.map((name) => name.split(".")[1]!))], [table]);
  const wanted = route.value.query["shape"] ?? names[0] ?? "";
  const trials = useMemo(() => spread(values, study.mode), [values, study.mode]);
  const { schedules, error } = useSchedules(study.study, trials);
  const lines = useMemo<Line[]>(() => {
    return trials.flatMap((trial, rank) => {
      const schedule = schedules.get(trial)?.items.find((item) => item.name === wanted);
      if (!schedule || schedule.values.some((value) => typeof value !== "number")) return [];
      const share = 1 - rank / Math.max(1, trials.length - 1);
      return [{ label: `trial ${trial}`, colour: scale(share), width: rank === 0 ? 3 : 1.4, x: schedule.steps, y: schedule.values as number[] }];
    });
  }, [schedules, wanted, trials, palette.value]);
  return (
    <>
      <p class="buttons">
        <select aria-label="Hyper-parameter" value={wanted} onChange={(event) => setQuery({ shape: event.currentTarget.value })}>
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
        <Plot label={`${wanted} over steps, of ${lines.length} trials`} height={200} lines={lines.toReversed()} xLabel="step" isLogY={route.value.query["shapeY"] === "log"} />
      ) : (
        <p class="quiet">{wanted} is not a number.</p>
      )}
      <p class="quiet">
        {trials.length} trials from the best ({number(values[trials[0] ?? 0])}, thick) to the worst; the brighter, the better.
      </p>
    </>
  );
}

/** Up to `MOST` trials, evenly from the best to the worst. */
function spread(values: (number | null)[], mode: string): number[] {
  const sign = mode === "min" ? 1 : -1;
  const ranked = values.flatMap((value, row) => (value === null ? [] : [row])).sort((a, b) => sign * (values[a]! - values[b]!));
  if (ranked.length <= MOST) return ranked;
  return Array.from({ length: MOST }, (_, index) => ranked[Math.round((index * (ranked.length - 1)) / (MOST - 1))]!);
}

function useSchedules(study: string, trials: number[]) {
  const [schedules, setSchedules] = useState(new Map<number, Schedules>());
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    let isOver = false;
    const missing = trials.filter((trial) => !schedules.has(trial));
    Promise.all(missing.map(async (trial) => [trial, await ask<Schedules>(about(study, `/trials/${trial}/schedules`, null))] as const)).then(
      (answers) => !isOver && answers.length && setSchedules(new Map([...schedules, ...answers])),
      (trouble: Trouble) => !isOver && setError(trouble.message),
    );
    return () => void (isOver = true);
  }, [study, trials.join(",")]);
  return { schedules, error };
}
