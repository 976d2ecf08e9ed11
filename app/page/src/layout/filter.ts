/** Which trials are wanted: words such as `state:running`, `rung>=1`, `lr.init<0.1`, each of which must hold. */
import type { Table } from "../table.ts";

type Test = (table: Table, row: number) => boolean;

const WORD = /^([\w.@-]+?)(<=|>=|!=|=|<|>|:)(.+)$/;

/** The rows for which every word holds; a word that is no comparison is looked for in the trial's standing. */
export function filtered(table: Table, text: string): number[] {
  const tests = text.split(/\s+/).filter(Boolean).map((word) => test(table, word));
  const rows: number[] = [];
  for (let row = 0; row < table.count; row += 1) if (tests.every((holds) => holds(table, row))) rows.push(row);
  return rows;
}

function test(table: Table, word: string): Test {
  const found = WORD.exec(word);
  if (!found) return (of, row) => String(of.get(row, "standing")).toLowerCase().includes(word.toLowerCase());
  const [, name, relation, wanted] = found as unknown as [string, string, string, string];
  const column = columnOf(table, name);
  if (column === null) return () => false;
  return (of, row) => compare(of.get(row, column), relation, wanted);
}

/** `lr.init` is short for `hp.lr.init`, and `best` for `best.value`. */
function columnOf(table: Table, name: string): string | null {
  return [name, `hp.${name}`, `${name}.value`].find((each) => each in table.columns) ?? null;
}

function compare(value: unknown, relation: string, wanted: string): boolean {
  const [a, b] = [typeof value === "number" ? value : Number.NaN, Number(wanted)];
  switch (relation) {
    case "<":
      return a < b;
    case ">":
      return a > b;
    case "<=":
      return a <= b;
    case ">=":
      return a >= b;
    case "!=":
      return String(value) !== wanted;
    case ":":
      return wanted.split(",").some((each) => String(value ?? "").toLowerCase().startsWith(each.toLowerCase()));
    default:
      return String(value) === wanted || a === b;
  }
}

/** By these, trials that failed come behind the others, as the server ranks them. */
const RESULTS = ["value", "best.value", "last.value"];

/** The rows in the order of a column; what has no value comes last, whichever way round. */
export function sorted(table: Table, rows: number[], column: string, isDown: boolean): number[] {
  const values = table.column(column);
  const sign = isDown ? -1 : 1;
  const states = RESULTS.includes(column) ? table.column("state") : [];
  const behind = (row: number) => (values[row] === null || values[row] === undefined ? 2 : states[row] === "failed" ? 1 : 0);
  return [...rows].sort((a, b) => {
    if (behind(a) !== behind(b) || behind(a) === 2) return behind(a) - behind(b) || a - b;
    const [x, y] = [values[a], values[b]];
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return sign * order || a - b;
  });
}

/** The trials that a study could have won by, the best first: no trunk of a cooldown, and none that breaks a constraint. */
export function bestRows(table: Table, mode: string): number[] {
  const values = table.column("value");
  const trunks = new Set(table.column("cooldown_of"));
  const isResult = (_: unknown, row: number) => values[row] !== null && !trunks.has(row) && !(Number(table.get(row, "violation")) > 0);
  return sorted(table, values.map((_, row) => row).filter(isResult), "value", mode !== "min");
}

/** Rows as a CSV file, by RFC 4180. */
export function csv(table: Table, rows: number[], columns: string[]): string {
  const quoted = (value: unknown) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = rows.map((row) => columns.map((column) => quoted(table.get(row, column))).join(","));
  return [columns.map(quoted).join(","), ...lines].join("\r\n") + "\r\n";
}
