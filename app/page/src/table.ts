/** The trials of a study by column, as the server gives them, and what can be asked of them. */
import { about, useAnswer, type Answer } from "./data.ts";
import type { Columns } from "./types.ts";

/** More of them are not told apart in a table or a drawing. */
const DIGITS = "6";

/** Of a schedule: more of them are no easier to read than the schedule. */
const MOST_FIELDS = 3;

export type Value = unknown;

const TITLES: Record<string, string> = { "best.value": "best", "best.step": "best @", "last.step": "last @", "last.deviation": "±", "last.repeats": "repeats", trained: "steps", standing: "why" };

/** What a column is called. */
export function titleOf(column: string): string {
  return TITLES[column] ?? column.replace(/^(hp|shape|metrics)\./, "");
}

export class Table {
  readonly count: number;
  readonly columns: Record<string, Value[]>;
  private foundVaried: string[] | undefined;
  private foundTelling: string[] | undefined;
  private numeric = new Map<string, boolean>();

  constructor(given: Columns) {
    this.count = given.count;
    this.columns = withConstants(given.columns as Record<string, Value[]>);
  }

  get(row: number, column: string): Value {
    return this.columns[column]?.[row] ?? null;
  }

  /** A column with a value for each trial, nulls where there is no such column. */
  column(name: string): Value[] {
    return this.columns[name] ?? Array<Value>(this.count).fill(null);
  }

  /** The columns that tell hyper-parameters apart, those that never vary left out. */
  get varied(): string[] {
    return (this.foundVaried ??= this.hyperparameters.filter((name) => this.isVaried(name)));
  }

  /**
   * A column for each hyper-parameter that varies: of its values, or of its schedules in words. Schedules of one family
   * that differ in few fields have these fields instead, which tell them apart.
   */
  get parameters(): string[] {
    return [...new Set(this.telling.map((name) => (this.isToldByFields(this.shapeOf(name)) ? name : this.shapeOf(name) ?? name)))];
  }

  /** The fields of a schedule that vary. */
  fieldsOf(shape: string): string[] {
    return this.telling.filter((name) => this.shapeOf(name) === shape);
  }

  /** Of what varies, all but where a decay begins, if its length and the trial's say that. */
  private get telling(): string[] {
    return (this.foundTelling ??= this.varied.filter((name) => !this.followsFromDecay(name)));
  }

  private followsFromDecay(name: string): boolean {
    const decay = name.replace(/stable_until$/, "decay");
    if (decay === name || !this.isNumeric(decay)) return false;
    const ends = this.column(name).map((from, row) => (from === null ? null : Number(from) + Number(this.get(row, decay))));
    const known = ends.filter((end) => end !== null);
    return known.every((end) => end === known[0]) || ends.every((end, row) => end === null || end === this.get(row, "steps"));
  }

  private isToldByFields(shape: string | undefined): boolean {
    if (shape === undefined || this.hyperparameters.includes(`hp.${titleOf(shape)}`)) return false;
    const fields = this.fieldsOf(shape);
    return fields.length <= MOST_FIELDS && fields.every((name) => this.isNumeric(name));
  }

  /** The column of the schedule that a column is a field of: `shape.lr` of `hp.lr.init`; names may have dots. */
  shapeOf(column: string): string | undefined {
    const parts = titleOf(column).split(".");
    const names = parts.map((_, index) => `shape.${parts.slice(0, parts.length - index).join(".")}`);
    return names.find((name) => name in this.columns);
  }

  private isVaried(name: string): boolean {
    return new Set(this.columns[name]!.filter((value) => value !== null).map(String)).size > 1;
  }

  /** Whether a column holds numbers, by the first value that it has. */
  isNumeric(name: string): boolean {
    let known = this.numeric.get(name);
    if (known === undefined) {
      known = typeof this.column(name).find((value) => value !== null) === "number";
      this.numeric.set(name, known);
    }
    return known;
  }

  /** The columns of hyper-parameters. */
  get hyperparameters(): string[] {
    return Object.keys(this.columns).filter((name) => name.startsWith("hp."));
  }
}

/** A hyper-parameter that is a constant in some trials has a family there too, by which it differs from the others. */
function withConstants(columns: Record<string, Value[]>): Record<string, Value[]> {
  const filled = { ...columns };
  for (const [name, families] of Object.entries(columns)) {
    const constants = name.endsWith(".family") && columns[name.slice(0, -".family".length)];
    if (constants) filled[name] = families.map((family, row) => family ?? (constants[row] == null ? null : "constant"));
  }
  return filled;
}

const tables = new WeakMap<Columns, Table>();

export function useTable(study: string, at: number | null): Answer<Table> {
  const { data, error } = useAnswer<Columns>(about(study, "/trials:columns", at, { digits: DIGITS }));
  if (data === null) return { data, error };
  let table = tables.get(data);
  if (!table) tables.set(data, (table = new Table(data)));
  return { data: table, error };
}
