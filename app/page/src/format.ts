/** Numbers, times and states for people. */

const MINUS = "−";

export function number(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return count(value);
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
  return text.replace(/\.?0+(?=e)/, "").replace("e+", "e").replace("-", MINUS);
}

/** On an axis, where there is room for five digits. */
export function onAxis(value: number): string {
  return Math.abs(value) >= 1e5 ? value.toExponential(2).replace(/\.?0+(?=e)/, "").replace("e+", "e").replace("-", MINUS) : number(value);
}

/** Beside a mean of repeats, their deviation and how many they are: ± 0.0012 (3). */
export function spread(result: { deviation?: number | null; repeats?: number } | null | undefined): string {
  return typeof result?.deviation === "number" ? `± ${number(result.deviation, 2)} (${result.repeats})` : "";
}

/** A result in six digits, with its deviation where it is a mean. */
export function result(found: { value: number; deviation?: number | null; repeats?: number }): string {
  return `${number(found.value, 6)} ${spread(found)}`.trim();
}

export function count(value: number): string {
  return value.toLocaleString("en-US").replace("-", MINUS);
}

export function plural(value: number, word: string, words = `${word}s`): string {
  return `${count(value)} ${value === 1 ? word : words}`;
}

export function percent(share: number | null | undefined): string {
  return share === null || share === undefined ? "–" : `${(share * 100).toFixed(share && share < 0.1 ? 1 : 0)} %`;
}

/** A part of a whole, of which only all is 100 % and only nothing is 0 %. */
export function share(part: number | null | undefined): string {
  if (part === null || part === undefined) return "–";
  return `${part === 0 || part === 1 ? 100 * part : Math.min(99, Math.max(1, Math.round(100 * part)))} %`;
}

/** 0:42, 12:05, 3:20:07 or 2 d 03:20. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
  const [minutes, rest] = [Math.floor(whole / 60) % 60, whole % 60];
  const two = (value: number) => String(value).padStart(2, "0");
  if (days) return `${days} d ${two(hours)}:${two(minutes)}`;
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

export function ago(milliseconds: number): string {
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** A moment as date and time of day, the date left out where it is today. */
export function time(unix: number | null | undefined): string {
  if (!unix) return "–";
  const when = new Date(unix * 1000);
  const clock = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return when.toDateString() === new Date().toDateString() ? clock : `${when.toLocaleDateString()} ${clock}`;
}

/** A shape for each state, so that nothing depends on colour alone. */
export const MARKS: Record<string, string> = {
  running: "◐",
  waiting: "○",
  paused: "Ⅱ",
  completed: "●",
  stopped: "✕",
  failed: "▲",
  cancelled: "–",
};

/** What a cell holds: numbers short, text as it is, nothing as a dash. */
export function cell(value: unknown): string {
  if (value === null || value === undefined || value === "") return "–";
  return typeof value === "number" ? number(value) : String(value);
}

const SIGNS = ["*", "†", "‡", "§", "¶"];

/** A sign for each of the sentences that stand beside numbers, in their order: one sign never has two meanings. */
export function signsOf(texts: (string | null | undefined)[]): Map<string, string> {
  const different = [...new Set(texts.map((text) => text ?? ""))].filter(Boolean);
  return new Map(different.map((text, index) => [text, SIGNS[index % SIGNS.length]!.repeat(1 + Math.floor(index / SIGNS.length))]));
}
