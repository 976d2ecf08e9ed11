/** The lines and axes of a plot. */

export interface Line {
  label: string;
  colour: string;
  width?: number;
  isStepped?: boolean;
  dash?: number[];
  /** Without a name at its end. */
  isUnnamed?: boolean;
  x: number[];
  y: number[];
}

export interface Axes {
  lines: Line[];
  xLabel: string;
  yLabel: string;
  isLogX?: boolean;
  isLogY?: boolean;
  marks?: { x: number; text: string }[];
  /** x is in seconds. */
  isTime?: boolean;
  /** The shown values. At each edge the number of points beyond it is written. */
  range?: [number, number] | null;
  /** Largest start of the x axis. */
  from?: number;
}

/** Lines have names at their ends if there are several. */
export function namedLines(lines: Line[]): Line[] {
  const named = lines.filter((line) => !line.isUnnamed && line.x.length > 0);
  return lines.length > 1 ? named : [];
}

/** A table of all points. */
export function lineRows({ lines, xLabel, yLabel }: Axes): (string | number)[][] {
  return [["line", xLabel, yLabel], ...lines.flatMap((line) => line.x.map((x, index) => [line.label, x, line.y[index]!]))];
}
