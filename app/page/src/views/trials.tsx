/** The table of all trials, with sorting, filtering and selection. */
import { computed, type ReadonlySignal, type Signal } from "@preact/signals";
import { useCallback, useMemo, useState } from "preact/hooks";
import { download } from "../download.ts";
import { cellText, count, STATE_SYMBOLS, footnoteSigns } from "../format.ts";
import { formatCsv, filterRows, sortRows } from "../layout/filter.ts";
import { FailedTrials } from "../parts/failures.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Rows } from "../parts/rows.tsx";
import { Footnotes } from "../parts/states.tsx";
import { selectedTrials, route, setQuery, studyLink, toggleTrial } from "../route.ts";
import { columnTitle, useTable, type Table } from "../table.ts";
import { SelectedTrials } from "./selected_trials.tsx";
import type { ViewProps } from "./props.ts";

/** The default columns before and after the hyper-parameters. */
const [LEADING_COLUMNS, TRAILING_COLUMNS] = [
  ["trial", "front", "value", "last.deviation", "trained"],
  ["state", "standing"],
];
/** Columns whose values get the footnote sign of the trial. */
const MARKED_COLUMNS = ["value", "best.value"];
const FRONT_TEXTS: Record<string, string> = { true: "◆ front", false: "", null: "" };
const MAX_PARAMETERS = 12;
const MAX_LETTERS = 24;
/** Width of the column of check boxes. */
const BOX_REM = 1.2;
const [NUMBER_REM, WORD_REM, LETTER_REM] = [5.5, 8, 0.62];
const WIDTHS: Record<string, number> = { trial: 4, state: 7, standing: 23, front: 5, rung: 4, rank: 4, trained: 4 };

export function Trials(props: ViewProps) {
  const answer = useTable(props.study.study, props.at);
  return (
    <>
      <FailedTrials study={props.study} />
      <Loaded answer={answer}>{(table) => <TrialsTable {...props} table={table} />}</Loaded>
      <SelectedTrials {...props} />
    </>
  );
}

function TrialsTable({ study, table }: ViewProps & { table: Table }) {
  const query = route.value.query;
  const best = study.mode === "min" ? "value" : "-value";
  const sort = query["sort"] ?? best;
  const text = query["q"] ?? "";
  const columns = useColumns(table, study.metrics?.slice(1).map((each) => `metrics.${each["name"]}`) ?? []);
  const rows = useMemo(() => {
    return sortRows(table, filterRows(table, text), sort.replace(/^-/, ""), sort.startsWith("-"));
  }, [table, text, sort]);
  const signs = useMemo(() => trialSigns(table), [table]);
  const widths = useMemo(() => columns.map((name) => WIDTHS[name] ?? columnWidth(table, name)), [columns, table]);
  const row = useCallback(
    (index: Signal<number>) => <Row study={study.study} table={table} trial={computed(() => rows[index.value] ?? 0)} columns={columns} widths={widths} signs={signs} />,
    [study.study, table, rows, columns, widths, signs],
  );
  const order = (name: string) => setQuery({ sort: sort === name ? `-${name}` : name });
  const aside = (
    <>
      <input
        type="search"
        class="filter"
        aria-label="Filter"
        placeholder="Filter: state:running rung>=1"
        value={text}
        onInput={(event) => setQuery({ q: event.currentTarget.value })}
      />
      <ColumnPicker table={table} columns={columns} />
      <button onClick={() => download(`${study.study}.csv`, formatCsv(table, rows, Object.keys(table.columns)), "text/csv;charset=utf-8")}>CSV</button>
    </>
  );
  const title = rows.length === table.count ? `${count(table.count)} trials` : `${count(rows.length)} of ${count(table.count)} trials`;
  return (
    <Panel title={title} aside={aside}>
      <Rows
        count={rows.length}
        label="Trials"
        widths={[BOX_REM, ...widths]}
        head={
          <>
            <span role="columnheader">
              <span class="hidden">selected</span>
            </span>
            {columns.map((name) => (
              <Heading key={name} name={name} sort={sort} order={order} isNumeric={table.isNumeric(name)} />
            ))}
          </>
        }
        row={row}
      />
      <Footnotes signs={signs} />
    </Panel>
  );
}

function trialSigns(table: Table): Map<string, string> {
  return footnoteSigns(table.column("exactness").map((text, row) => (text === null || table.get(row, "value") === null ? null : String(text))));
}

/** Width in rem, for the cells and for the name with its sort arrow. */
function columnWidth(table: Table, name: string): number {
  const least = Math.max(table.isNumeric(name) ? NUMBER_REM : WORD_REM, (columnTitle(name).length + 2) * LETTER_REM);
  if (!name.startsWith("shape.")) return least;
  const longest = table.column(name).reduce<number>((most, text) => Math.max(most, String(text ?? "").length), 0);
  return Math.max(least, Math.min(MAX_LETTERS, longest) * LETTER_REM);
}

function useColumns(table: Table, metrics: string[]): string[] {
  const names = route.value.query["columns"];
  return useMemo(() => {
    const there = (name: string) => name in table.columns && table.columns[name]!.some((value) => value !== null);
    return (names ? names.split(",") : [...LEADING_COLUMNS, ...metrics, ...table.parameters.slice(0, MAX_PARAMETERS), ...TRAILING_COLUMNS]).filter(there);
  }, [table, names]);
}

interface HeadingProps {
  name: string;
  sort: string;
  order: (name: string) => void;
  isNumeric: boolean;
}

function Heading({ name, sort, order, isNumeric }: HeadingProps) {
  const direction = sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none";
  const arrow = { ascending: "▴", descending: "▾", none: "" }[direction];
  return (
    <span role="columnheader" aria-sort={direction} class={isNumeric ? "n" : ""}>
      <button class="plain" onClick={() => order(name)} title={name}>
        {columnTitle(name)} {arrow}
      </button>
    </span>
  );
}

interface RowProps {
  study: string;
  table: Table;
  /** The trial of the row. Cells update by the signal, without a new render. */
  trial: ReadonlySignal<number>;
  columns: string[];
  /** In rem, by column. */
  widths: number[];
  /** Footnote sign by text. */
  signs: Map<string, string>;
}

function Row({ study, table, trial, columns, widths, signs }: RowProps) {
  const isSelected = computed(() => selectedTrials.value.includes(trial.value));
  const label = computed(() => `Choose trial ${trial.value}`);
  return (
    <>
      <span role="cell" style={{ width: `${BOX_REM}rem` }}>
        <input type="checkbox" checked={isSelected} aria-label={label} onChange={() => toggleTrial(trial.peek())} />
      </span>
      {columns.map((name, column) => (
        <Cell key={name} study={study} table={table} trial={trial} name={name} width={`${widths[column]}rem`} signs={signs} />
      ))}
    </>
  );
}

function Cell({ study, table, trial, name, width, signs }: Omit<RowProps, "columns" | "widths"> & { name: string; width: string }) {
  if (name === "trial") {
    const link = computed(() => studyLink(study, ["trials", String(trial.value)]));
    return (
      <span role="cell" class="n" style={{ width }}>
        <a href={link}>{trial}</a>
      </span>
    );
  }
  const mark = (at: number) => (MARKED_COLUMNS.includes(name) && table.get(at, name) !== null ? signs.get(String(table.get(at, "exactness") ?? "")) ?? "" : "");
  const text = computed(() => (name === "front" ? FRONT_TEXTS[String(table.get(trial.value, name))]! : `${cellText(table.get(trial.value, name))}${mark(trial.value)}`));
  if (name === "state") return <StateCell state={text} width={width} />;
  if (table.isNumeric(name)) {
    return (
      <span role="cell" class="n" style={{ width }}>
        {text}
      </span>
    );
  }
  return (
    <span role="cell" class="words" title={text} style={{ width }}>
      {text}
    </span>
  );
}

function StateCell({ state, width }: { state: ReadonlySignal<string>; width: string }) {
  return (
    <span role="cell" class={computed(() => `state ${state.value}`)} style={{ width }}>
      <span aria-hidden="true">{computed(() => STATE_SYMBOLS[state.value] ?? "·")}</span> {state}
    </span>
  );
}

function ColumnPicker({ table, columns }: { table: Table; columns: string[] }) {
  const [isOpen, setOpen] = useState(false);
  const all = Object.keys(table.columns);
  const toggle = (name: string) => {
    const next = columns.includes(name) ? columns.filter((each) => each !== name) : [...columns, name];
    setQuery({ columns: next.join(",") });
  };
  return (
    <details class="menu" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Columns</summary>
      <ul>
        {isOpen &&
          all.map((name) => (
            <li key={name}>
              <label>
                <input type="checkbox" checked={columns.includes(name)} onChange={() => toggle(name)} /> {name}
              </label>
            </li>
          ))}
        <li>
          <button onClick={() => setQuery({ columns: "" })}>reset</button>
        </li>
      </ul>
    </details>
  );
}
