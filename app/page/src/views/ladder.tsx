/** The rung ladder: a column for each rung, its trials by rank, and the cut between the promoted trials and the others. */
import { useMemo } from "preact/hooks";
import { studyPath, useAnswer } from "../data.ts";
import { STATE_SYMBOLS, count, number, plural } from "../format.ts";
import { ladderEdges, ladderRows, ROW, WIDTH, type Row } from "../layout/ladder.ts";
import { lastDecisions } from "../layout/rungs.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { selectedTrials, route, setQuery, studyLink, toggleTrial } from "../route.ts";
import { useTable, type Table } from "../table.ts";
import type { History, RankedRung, Rungs, Study } from "../types.ts";
import { SelectedTrials } from "./selected_trials.tsx";
import type { ViewProps } from "./props.ts";
import { WhatIf } from "./what_if.tsx";

export function Ladder(props: ViewProps) {
  const { study, at } = props;
  const answer = useAnswer<Rungs>(studyPath(study.study, "/rungs", at));
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
            if (rungs.length === 0) return <p class="quiet">The tuner {study.tuner} has no rungs. The table of trials shows why each trial ended.</p>;
            return <Columns {...props} rungs={rungs} />;
          }}
        </Loaded>
      </Panel>
      <Decisions {...props} rungs={answer.data?.items ?? []} />
      <SelectedTrials {...props} />
      {answer.data?.items?.length !== 0 && <WhatIf {...props} />}
    </>
  );
}

function Columns({ study, at, rungs }: ViewProps & { rungs: RankedRung[] }) {
  const table = useTable(study.study, at);
  const columns = useMemo(() => rungs.map((rung, column) => ladderRows(rung, selectedTrials.value, column === rungs.length - 1)), [rungs, selectedTrials.value]);
  const height = Math.max(...columns.map((rows) => rows.length)) * ROW + 8;
  return (
    <div class="scroll">
      <div class="ladder" style={{ minWidth: `${rungs.length * WIDTH}px` }}>
        <div class="ladder-heads">
          {rungs.map((rung) => (
            <div key={rung.rung} style={{ width: `${WIDTH}px` }}>
              <b>rung {rung.rung}</b> · step {rung.steps}
              <p class="quiet">
                {count(rung.trials.length)} of {count(rung.entered)} arrived
              </p>
            </div>
          ))}
        </div>
        <div class="ladder-body" style={{ height: `${height}px` }}>
          <svg width={rungs.length * WIDTH} height={height} aria-hidden="true">
            {ladderEdges(columns).map((edge) => (
              <path key={edge.key} class={selectedTrials.value.includes(edge.trial) ? "lit" : ""} d={edge.path} />
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
  const isSelected = selectedTrials.value.includes(row.trial);
  return (
    <button
      class={`ladder-row ${row.isPromoted ? "on" : ""} ${isSelected ? "chosen" : ""}`}
      style={style}
      aria-pressed={isSelected}
      title={String(table?.get(row.trial, "standing") ?? "")}
      onClick={() => toggleTrial(row.trial)}
    >
      <span class="quiet">
        <span class="hidden">rank </span>
        {row.rank}
      </span>
      <span>
        {row.isPromoted ? "▸" : row.value === null ? "▲" : STATE_SYMBOLS[String(table?.get(row.trial, "state"))]} {row.trial}
      </span>
      <span class="n">
        {row.value === null ? "failed" : number(row.value)}
        {row.decision && <span class="hidden"> {row.decision}</span>}
      </span>
    </button>
  );
}

/** The last decision about each selected trial, with its event. */
function Decisions({ study, at, rungs }: ViewProps & { rungs: RankedRung[] }) {
  const history = useAnswer<History>(studyPath(study.study, "/history", at));
  const events = useMemo(() => lastDecisions(history.data), [history.data]);
  const shown = selectedTrials.value.filter((trial) => rungs.some((rung) => rung.trials.includes(trial)));
  if (rungs.length === 0) return null;
  if (shown.length === 0) return <p class="quiet told">Select a trial to see why it was or was not promoted.</p>;
  return (
    <ul class="told" aria-live="polite">
      {shown.map((trial) => (
        <li key={trial}>
          <b>trial {trial}</b>: {decisionText(study, rungs, trial)}
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
function decisionText({ finished_at }: Study, rungs: RankedRung[], trial: number): string {
  const last = rungs.filter((rung) => rung.trials.includes(trial)).at(-1)!;
  const rank = last.trials.indexOf(trial) + 1;
  const isPromoted = last.promoted.includes(trial);
  const others = `${last.promoted.length} promoted`;
  const where = `rung ${last.rung}: rank ${rank} of ${last.trials.length}`;
  if (!isPromoted && !rungs.some(({ bracket, rung }) => bracket === last.bracket && rung > last.rung)) return `reached ${where}; there is no further rung`;
  if (isPromoted) return `promoted from ${where}, one of ${last.promoted.length}`;
  return `${finished_at === null ? "waits" : "pruned"} at ${where}, ${others}`;
}
