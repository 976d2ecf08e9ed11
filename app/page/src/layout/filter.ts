/** Filters and orders of trials. A filter is a list of conditions, such as `state:running rung>=1 lr.init<0.1`; all must hold. */
import type { Table } from "../table.ts";

type Test = (table: Table, row: number) => boolean;

const WORD = /^([\w.@-]+?)(<=|>=|!=|=|<|>|:)(.+)$/;

/** The rows that match all conditions. A word without an operator is searched in the trial's standing. */
export function filterRows(table: Table, text: string): number[] {
  const tests = text.split(/\s+/).filter(Boolean).map((word) => parseTest(table, word));
  const rows: number[] = [];
  for (let row = 0; row < table.count; row += 1) if (tests.every((holds) => holds(table, row))) rows.push(row);
  return rows;
}

function parseTest(table: Table, word: string): Test {
  const found = WORD.exec(word);
  if (!found) return (of, row) => String(of.get(row, "standing")).toLowerCase().includes(word.toLowerCase());
  const [, name, relation, operand] = found as unknown as [string, string, string, string];
  const column = resolveColumn(table, name);
  if (column === null) return () => false;
  return (of, row) => compare(of.get(row, column), relation, operand);
}

/** `lr.init` is short for `hp.lr.init`, and `best` for `best.value`. */
function resolveColumn(table: Table, name: string): string | null {
  return [name, `hp.${name}`, `${name}.value`].find((each) => each in table.columns) ?? null;
}

function compare(value: unknown, relation: string, operand: string): boolean {
  const [a, b] = [typeof value === "number" ? value : Number.NaN, Number(operand)];
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
      return String(value) !== operand;
    case ":":
      return operand.split(",").some((each) => String(value ?? "").toLowerCase().startsWith(each.toLowerCase()));
    default:
      return String(value) === operand || a === b;
  }
}

/** In the order of these columns failed trials come after the others, as in the ranks of the server. */
const RESULT_COLUMNS = ["value", "best.value", "last.value"];

/** The rows in the order of a column. Rows without a value come last in both directions. */
export function sortRows(table: Table, rows: number[], column: string, isDown: boolean): number[] {
  const values = table.column(column);
  const sign = isDown ? -1 : 1;
  const states = RESULT_COLUMNS.includes(column) ? table.column("state") : [];
  const tier = (row: number) => (values[row] === null || values[row] === undefined ? 2 : states[row] === "failed" ? 1 : 0);
  return [...rows].sort((a, b) => {
    if (tier(a) !== tier(b) || tier(a) === 2) return tier(a) - tier(b) || a - b;
    const [x, y] = [values[a], values[b]];
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return sign * order || a - b;
  });
}

/** The trials from best to worst, without trunks of cooldowns and merges, and without trials that violate a constraint. */
export function bestRows(table: Table, mode: string): number[] {
  const values = table.column("value");
  const trunks = new Set([...table.column("cooldown_of"), ...table.column("merge_of")]);
  const isResult = (_: unknown, row: number) => values[row] !== null && !trunks.has(row) && !(Number(table.get(row, "violation")) > 0);
  return sortRows(table, values.map((_, row) => row).filter(isResult), "value", mode !== "min");
}

/** CSV by RFC 4180. */
export function formatCsv(table: Table, rows: number[], columns: string[]): string {
  const quoted = (value: unknown) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = rows.map((row) => columns.map((column) => quoted(table.get(row, column))).join(","));
  return [columns.map(quoted).join(","), ...lines].join("\r\n") + "\r\n";
}
