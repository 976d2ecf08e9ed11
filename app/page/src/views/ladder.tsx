/** The rung ladder: a column a rung, its trials by rank, the line between those that went on and those that did not. */
import { useMemo } from "preact/hooks";
import { about, useAnswer } from "../data.ts";
import { MARKS, number, plural } from "../format.ts";
import { edges, rowsOf, ROW, WIDTH, type Row } from "../layout/ladder.ts";
import { lastDecisions } from "../layout/rungs.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { chosen, route, setQuery, studyLink, toggleChosen } from "../route.ts";
import { useTable, type Table } from "../table.ts";
import type { History, RankedRung, Rungs, Study } from "../types.ts";
import { Chosen } from "./chosen.tsx";
import type { ViewProps } from "./props.ts";
import { WhatIf } from "./what_if.tsx";

export function Ladder(props: ViewProps) {
  const { study, at } = props;
  const answer = useAnswer<Rungs>(about(study.study, "/rungs", at));
  const brackets = [...new Set((answer.data?.items ?? []).map((rung) => rung.bracket))];
  const bracket = Number(route.value.query["bracket"] ?? brackets[0] ?? 0);
  const aside = brackets.length > 1 && (
    <label>
      bracket{" "}
      <select value={bracket} onChange={(event) => setQuery({ bracket: event.currentTarget.value })}>
        {brackets.map((each) => (
          <option key={each} value={each}>
            {each}
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <>
      <Panel title="Rung ladder" aside={aside}>
        <Loaded answer={answer}>
          {({ items }) => {
            const rungs = items.filter((rung) => rung.bracket === bracket);
            if (rungs.length === 0) return <p class="quiet">The tuner {study.tuner} has no rungs. The table of trials says why each of them ended.</p>;
            return <Columns {...props} rungs={rungs} />;
          }}
        </Loaded>
      </Panel>
      <Told {...props} rungs={answer.data?.items ?? []} />
      <Chosen {...props} />
      {answer.data?.items?.length !== 0 && <WhatIf {...props} />}
    </>
  );
}

function Columns({ study, at, rungs }: ViewProps & { rungs: RankedRung[] }) {
  const table = useTable(study.study, at);
  const columns = useMemo(() => rungs.map((rung, column) => rowsOf(rung, chosen.value, column === rungs.length - 1)), [rungs, chosen.value]);
  const height = Math.max(...columns.map((rows) => rows.length)) * ROW + 8;
  return (
    <div class="scroll">
      <div class="ladder" style={{ minWidth: `${rungs.length * WIDTH}px` }}>
        <div class="ladder-heads">
          {rungs.map((rung) => (
            <div key={rung.rung} style={{ width: `${WIDTH}px` }}>
              <b>rung {rung.rung}</b> · step {rung.steps}
              <p class="quiet">
                {rung.trials.length} of {rung.entered} arrived
              </p>
            </div>
          ))}
        </div>
        <div class="ladder-body" style={{ height: `${height}px` }}>
          <svg width={rungs.length * WIDTH} height={height} aria-hidden="true">
            {edges(columns).map((edge) => (
              <path key={edge.key} class={chosen.value.includes(edge.trial) ? "lit" : ""} d={edge.path} />
            ))}
          </svg>
          {columns.map((rows, column) =>
            rows.map((row, index) => <Cell key={`${column}-${index}`} row={row} x={column * WIDTH} y={index * ROW} table={table.data} />),
          )}
        </div>
      </div>
    </div>
  );
}

function Cell({ row, x, y, table }: { row: Row; x: number; y: number; table: Table | null }) {
  const style = { left: `${x}px`, top: `${y}px`, width: `${WIDTH - 40}px` };
  if (row.kind === "cut") {
    return (
      <div class="ladder-cut" style={style}>
        {row.text}
      </div>
    );
  }
  if (row.kind === "more") {
    return (
      <div class="ladder-more" style={style}>
        … {plural(row.hidden, "more trial")}
      </div>
    );
  }
  const isChosen = chosen.value.includes(row.trial);
  return (
    <button
      class={`ladder-row ${row.isPromoted ? "on" : ""} ${isChosen ? "chosen" : ""}`}
      style={style}
      aria-pressed={isChosen}
      title={String(table?.get(row.trial, "standing") ?? "")}
      onClick={() => toggleChosen(row.trial)}
    >
      <span class="quiet">
        <span class="hidden">rank </span>
        {row.rank}
      </span>
      <span>
        {row.isPromoted ? "▸" : row.value === null ? "▲" : MARKS[String(table?.get(row.trial, "state"))]} {row.trial}
      </span>
      <span class="n">
        {row.value === null ? "failed" : number(row.value)}
        {row.fate && <span class="hidden"> {row.fate}</span>}
      </span>
    </button>
  );
}

/** Why each of the chosen trials is where it is, in a sentence with the event that decided it. */
function Told({ study, at, rungs }: ViewProps & { rungs: RankedRung[] }) {
  const history = useAnswer<History>(about(study.study, "/history", at));
  const events = useMemo(() => lastDecisions(history.data), [history.data]);
  const shown = chosen.value.filter((trial) => rungs.some((rung) => rung.trials.includes(trial)));
  if (rungs.length === 0) return null;
  if (shown.length === 0) return <p class="quiet told">Choose a trial to read why it was or was not promoted.</p>;
  return (
    <ul class="told" aria-live="polite">
      {shown.map((trial) => (
        <li key={trial}>
          <b>trial {trial}</b>: {verdict(rungs, trial, study.finished_at !== null)}
          {events.has(trial) && (
            <>
              , <EventLink study={study} position={events.get(trial)!} />
            </>
          )}
        </li>
      ))}
    </ul>
  );
}

function EventLink({ study, position }: { study: Study; position: number }) {
  return <a href={studyLink(study.study, ["events"], { event: String(position) })}>event {position}</a>;
}

/** "pruned at rung 1: rank 7 of 12, 3 promoted", "waits at" in a study that has not ended, or "reached" the last rung. */
function verdict(rungs: RankedRung[], trial: number, hasEnded: boolean): string {
  const last = rungs.filter((rung) => rung.trials.includes(trial)).at(-1)!;
  const rank = last.trials.indexOf(trial) + 1;
  const went = last.promoted.includes(trial);
  const others = `${last.promoted.length} promoted`;
  const where = `rung ${last.rung}: rank ${rank} of ${last.trials.length}`;
  if (!went && !rungs.some(({ bracket, rung }) => bracket === last.bracket && rung > last.rung)) return `reached ${where}; there is no further rung`;
  return went ? `promoted from ${where}, one of ${last.promoted.length}` : `${hasEnded ? "pruned" : "waits"} at ${where}, ${others}`;
}
