/** The best trials of a study, with a link to all of them. */
import { useMemo } from "preact/hooks";
import { cellText, count, deviationText, footnoteSigns, number } from "../format.ts";
import { bestRows } from "../layout/filter.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Footnotes, Mark, State } from "../parts/states.tsx";
import { studyLink } from "../route.ts";
import { columnTitle, useTable, type Table } from "../table.ts";
import type { Study } from "../types.ts";
import type { ViewProps } from "./props.ts";

const [MAX_ROWS, MAX_PARAMETERS] = [6, 6];

export function TopTrials({ study, at }: ViewProps) {
  const answer = useTable(study.study, at);
  const all = answer.data && <a href={studyLink(study.study, ["trials"])}>all {count(answer.data.count)} trials</a>;
  return (
    <Panel title="Trials" class="wide" aside={all}>
      <Loaded answer={answer}>{(table) => <TopTable study={study} table={table} />}</Loaded>
    </Panel>
  );
}

function TopTable({ study, table }: { study: Study; table: Table }) {
  const rows = useMemo(() => bestRows(table, study.mode).slice(0, MAX_ROWS), [table, study.mode]);
  if (rows.length === 0) return <p class="quiet">No trial has a result yet.</p>;
  const markOf = (trial: number) => table.get(trial, "exactness") as string | null;
  const signs = footnoteSigns(rows.map(markOf));
  const parameters = table.parameters.slice(0, MAX_PARAMETERS);
  const place = study.value === "best" ? "best" : "last";
  const spread = (trial: number) =>
    deviationText({ deviation: table.get(trial, `${place}.deviation`) as number | null, repeats: Number(table.get(trial, `${place}.repeats`)), repeats_from: Number(table.get(trial, `${place}.repeats_from`)) });
  return (
    <div class="scroll">
      <table class="list">
        <thead>
          <tr>
            <th>Trial</th>
            <th class="n">{study.metric}</th>
            {parameters.map((name) => (
              <th key={name} class={table.isNumeric(name) ? "n" : ""}>
                {columnTitle(name)}
              </th>
            ))}
            <th class="n">Steps</th>
            <th>State</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((trial) => (
            <tr key={trial}>
              <th scope="row">
                <a href={studyLink(study.study, ["trials", String(trial)])}>{trial}</a>
              </th>
              <td class="n">
                {number(table.get(trial, "value") as number)}
                <Mark text={markOf(trial)} signs={signs} /> <span class="quiet">{spread(trial)}</span>
              </td>
              {parameters.map((name) => (
                <td key={name} class={table.isNumeric(name) ? "n" : "whole"}>
                  {cellText(table.get(trial, name))}
                </td>
              ))}
              <td class="n">{cellText(table.get(trial, "trained"))}</td>
              <td>
                <State state={String(table.get(trial, "state"))} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <Footnotes signs={signs} />
    </div>
  );
}
