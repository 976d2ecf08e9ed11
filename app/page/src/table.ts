/** The table of a study's trials, stored by column as the server sends it. */
import { studyPath, useAnswer, type Answer } from "./data.ts";
import { cellText } from "./format.ts";
import type { Columns } from "./types.ts";

/** Significant digits to request: enough for tables and drawings. */
const DIGITS = "6";

/** A schedule with more varying fields is shown as text instead. */
const MAX_FIELD_COLUMNS = 3;

export type Value = unknown;

const TITLES: Record<string, string> = { "best.value": "best", "best.step": "best at step", "last.step": "last at step", "last.deviation": "±", "last.repeats": "repeats", "last.repeats_from": "from step", trained: "steps", standing: "why" };

export function columnTitle(column: string): string {
  return TITLES[column] ?? column.replace(/^(hp|shape|metrics)\./, "");
}

export class Table {
  readonly count: number;
  readonly columns: Record<string, Value[]>;
  private varyingCache: string[] | undefined;
  private relevantCache: string[] | undefined;
  private numeric = new Map<string, boolean>();

  constructor(answer: Columns) {
    this.count = answer.count;
    this.columns = fillConstantFamilies(answer.columns as Record<string, Value[]>);
  }

  get(row: number, column: string): Value {
    return this.columns[column]?.[row] ?? null;
  }

  /** A column with a value for each trial, nulls where there is no such column. */
  column(name: string): Value[] {
    return this.columns[name] ?? Array<Value>(this.count).fill(null);
  }

  /** The hyper-parameter columns that vary among the trials. */
  get varyingParameters(): string[] {
    return (this.varyingCache ??= this.hyperparameters.filter((name) => this.isVarying(name)));
  }

  /**
   * One column for each varying hyper-parameter, with its values or its schedules as text. Schedules of one family that
   * differ in up to `MAX_FIELD_COLUMNS` numbers have a column for each of these fields instead.
   */
  get parameters(): string[] {
    return [...new Set(this.relevantParameters.map((name) => (this.hasFieldColumns(this.scheduleColumn(name)) ? name : this.scheduleColumn(name) ?? name)))];
  }

  /** The fields of a schedule that vary. */
  scheduleFields(shape: string): string[] {
    return this.relevantParameters.filter((name) => this.scheduleColumn(name) === shape);
  }

  /** The varying columns without `stable_until` where it follows from the length of the decay and of the trial. */
  private get relevantParameters(): string[] {
    return (this.relevantCache ??= this.varyingParameters.filter((name) => !this.followsFromDecay(name)));
  }

  private followsFromDecay(name: string): boolean {
    const decay = name.replace(/stable_until$/, "decay");
    if (decay === name || !this.isNumeric(decay)) return false;
    const ends = this.column(name).map((from, row) => (from === null ? null : Number(from) + Number(this.get(row, decay))));
    const isNumber = ends.filter((end) => end !== null);
    return isNumber.every((end) => end === isNumber[0]) || ends.every((end, row) => end === null || end === this.get(row, "steps"));
  }

  private hasFieldColumns(shape: string | undefined): boolean {
    if (shape === undefined || this.hyperparameters.includes(`hp.${columnTitle(shape)}`)) return false;
    const fields = this.scheduleFields(shape);
    return fields.length <= MAX_FIELD_COLUMNS && fields.every((name) => this.isNumeric(name));
  }

  /** The schedule column of a field: `shape.lr` for `hp.lr.init`. Names of hyper-parameters may have dots. */
  scheduleColumn(column: string): string | undefined {
    const parts = columnTitle(column).split(".");
    const names = parts.map((_, index) => `shape.${parts.slice(0, parts.length - index).join(".")}`);
    return names.find((name) => name in this.columns);
  }

  private isVarying(name: string): boolean {
    return new Set(this.columns[name]!.filter((value) => value !== null).map(String)).size > 1;
  }

  /** Whether the first value of a column is a number. */
  isNumeric(name: string): boolean {
    let known = this.numeric.get(name);
    if (known === undefined) {
      known = typeof this.column(name).find((value) => value !== null) === "number";
      this.numeric.set(name, known);
    }
    return known;
  }

  get hyperparameters(): string[] {
    return Object.keys(this.columns).filter((name) => name.startsWith("hp."));
  }
}

const MAX_NAMED_PARAMETERS = 6;

/** The varying hyper-parameters of a trial: "lr 0.1, bs 64". */
export function parametersText(table: Table | null, trial: number): string {
  const names = table?.parameters.filter((name) => table.get(trial, name) !== null).slice(0, MAX_NAMED_PARAMETERS) ?? [];
  return names.map((name) => `${columnTitle(name)} ${cellText(table!.get(trial, name))}`).join(", ");
}

/** Add the family "constant" for trials in which a hyper-parameter is no schedule, so that families can be compared. */
function fillConstantFamilies(columns: Record<string, Value[]>): Record<string, Value[]> {
  const filled = { ...columns };
  for (const [name, families] of Object.entries(columns)) {
    const constants = name.endsWith(".family") && columns[name.slice(0, -".family".length)];
    if (constants) filled[name] = families.map((family, row) => family ?? (constants[row] == null ? null : "constant"));
  }
  return filled;
}

const tables = new WeakMap<Columns, Table>();

export function useTable(study: string, at: number | null): Answer<Table> {
  const { data, error } = useAnswer<Columns>(studyPath(study, "/trials:columns", at, { digits: DIGITS }));
  if (data === null) return { data, error };
  let table = tables.get(data);
  if (!table) tables.set(data, (table = new Table(data)));
  return { data: table, error };
}
