/** The differences between two moments of a study. */
import { useMemo } from "preact/hooks";
import { studyPath, useAnswer } from "../data.ts";
import { cellText, count, duration, number, plural, share } from "../format.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { route, setQuery, studyLink } from "../route.ts";
import { useTable, type Table } from "../table.ts";
import { trialCount, type History, type Study } from "../types.ts";
import type { ViewProps } from "./props.ts";

const COMPARED_COLUMNS = ["state", "rung", "rank", "value", "steps", "trained"];
const MAX_CHANGES = 200;

export function Moments({ study }: ViewProps) {
  const name = study.study;
  const history = useAnswer<History>(studyPath(name, "/history", null));
  const head = history.data?.position ?? 1;
  const a = Number(route.value.query["a"]) || 1;
  const b = Number(route.value.query["b"]) || null;
  const first = useAnswer<Study>(studyPath(name, "", a, { trials: "false" }));
  const second = useAnswer<Study>(studyPath(name, "", b, { trials: "false" }));
  const [before, after] = [useTable(name, a), useTable(name, b)];
  const field = (key: string, value: number | null) => (
    <label>
      event{" "}
      <input type="number" min={1} max={head} value={value ?? ""} placeholder="now" onChange={(event) => setQuery({ [key]: event.currentTarget.value })} />
    </label>
  );
  return (
    <Panel title="Two moments" aside={<>{field("a", a)} and {field("b", b)}</>}>
      <Loaded answer={first}>
        {(then) => (
          <Loaded answer={second}>
            {(now) => (
              <table class="list narrow">
                <thead>
                  <tr>
                    <td />
                    <th class="n">event {a}</th>
                    <th class="n">{b ? `event ${b}` : "now"}</th>
                  </tr>
                </thead>
                <tbody>
                  {facts(then).map(([label, value], index) => {
                    const other = facts(now)[index]![1];
                    return (
                      <tr key={label} class={value === other ? "" : "changed"}>
                        <th scope="row">{label}</th>
                        <td class="n">{value}</td>
                        <td class="n">{value === other ? <span class="quiet">unchanged</span> : <b>{other}</b>}</td>
                      </tr>
                    );
                  })}
                </tbody>
              </table>
            )}
          </Loaded>
        )}
      </Loaded>
      {before.data && after.data && <ChangedTrials study={name} before={before.data} after={after.data} />}
    </Panel>
  );
}

function facts(study: Study): [string, string][] {
  return [
    ["state", study.state],
    ["best", study.best ? `${number(study.best.value)} (trial ${study.best.trial})` : "–"],
    ["trials", count(trialCount(study))],
    ...Object.entries(study.counts).map(([state, each]): [string, string] => [`·\u00a0${state}`, count(each)]),
    ["steps run", count(study.cost.run)],
    ["saved by sharing", share(study.cost.saved_by_sharing)],
    ["saved by early stopping", share(study.cost.saved_by_stopping)],
    ["slot time", duration(study.gpu_seconds)],
    ["time", duration(study.wall_seconds)],
  ];
}

function ChangedTrials({ study, before, after }: { study: string; before: Table; after: Table }) {
  const rows = useMemo(() => trialChanges(before, after), [before, after]);
  return (
    <>
      <h3>{plural(rows.length, "trial")} changed</h3>
      <ul class="told">
        {rows.slice(0, MAX_CHANGES).map(({ trial, text }) => (
          <li key={trial}>
            <a href={studyLink(study, ["trials", String(trial)])}>trial {trial}</a> {text}
          </li>
        ))}
      </ul>
      {rows.length > MAX_CHANGES && <p class="quiet">and {rows.length - MAX_CHANGES} more</p>}
    </>
  );
}

/** The changes of each changed trial, as text. */
export function trialChanges(before: Table, after: Table): { trial: number; text: string }[] {
  const all: { trial: number; text: string }[] = [];
  for (let trial = 0; trial < after.count; trial += 1) {
    if (trial >= before.count) {
      all.push({ trial, text: `is new: ${cellText(after.get(trial, "standing"))}` });
      continue;
    }
    const changed = COMPARED_COLUMNS.filter((name) => before.get(trial, name) !== after.get(trial, name));
    const words = changed.map((name) => `${name} ${cellText(before.get(trial, name))} → ${cellText(after.get(trial, name))}`);
    if (words.length) all.push({ trial, text: words.join(", ") });
  }
  return all;
}
