/** Numbers, times and states as text. */

const MINUS = "−";

export function number(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return count(value);
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
  return text.replace(/\.?0+(?=e)/, "").replace("e+", "e").replace("-", MINUS);
}

/** A tick label, of at most five digits. */
export function axisNumber(value: number): string {
  return Math.abs(value) >= 1e5 ? value.toExponential(2).replace(/\.?0+(?=e)/, "").replace("e+", "e").replace("-", MINUS) : number(value);
}

type Spread = { deviation?: number | null; repeats?: number; repeats_from?: number };

/** The standard deviation and the count of repeats: "± 0.0012 (3)", or "± 0.0012 (3 from step 8000)"; "" for a single run. */
export function deviationText(result: Spread | null | undefined): string {
  if (typeof result?.deviation !== "number") return "";
  const from = result.repeats_from ? ` from step ${result.repeats_from}` : "";
  return `± ${number(result.deviation, 2)} (${result.repeats}${from})`;
}

/** A result in six digits, with the deviation of its repeats. */
export function resultText(result: Spread & { value: number }): string {
  return `${number(result.value, 6)} ${deviationText(result)}`.trim();
}

export function count(value: number): string {
  return value.toLocaleString("en-US").replace("-", MINUS);
}

export function plural(value: number, word: string, words = `${word}s`): string {
  return `${count(value)} ${value === 1 ? word : words}`;
}

export function percent(ratio: number | null | undefined): string {
  return ratio === null || ratio === undefined ? "–" : `${(ratio * 100).toFixed(ratio && ratio < 0.1 ? 1 : 0)} %`;
}

/** A share in percent, rounded to 1 to 99 unless it is exactly 0 or 1. */
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

/** A time on an axis, with a tenth of a second where it has one. */
export function durationText(seconds: number): string {
  const tenths = Math.round(10 * seconds);
  return duration(Math.floor(tenths / 10)) + (tenths % 10 ? `.${tenths % 10}` : "");
}

export function ageText(milliseconds: number): string {
  const seconds = Math.round(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

/** Date and time of day; the date is omitted for today. `zoneText` names the time zone. */
export function timeText(unix: number | null | undefined): string {
  if (!unix) return "–";
  const when = new Date(unix * 1000);
  const clock = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return when.toDateString() === new Date().toDateString() ? clock : `${dayText(when)} ${clock}`;
}

/** "30 Nov 2026, 14:05". */
export function dateText(unix: number): string {
  const when = new Date(unix * 1000);
  return `${dayText(when)}, ${when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false })}`;
}

function dayText(when: Date): string {
  return when.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}

/** The browser's time zone, in which all times are shown: "UTC" or "GMT+1". */
export function zoneText(): string {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts();
  return parts.find((part) => part.type === "timeZoneName")?.value ?? "local time";
}

/** A symbol for each trial state, so that states do not depend on colour alone. */
export const STATE_SYMBOLS: Record<string, string> = {
  running: "◐",
  waiting: "○",
  paused: "Ⅱ",
  completed: "●",
  pruned: "✕",
  failed: "▲",
  cancelled: "–",
};

/** The text of a table cell; "–" for no value. */
export function cellText(value: unknown): string {
  if (value === null || value === undefined || value === "") return "–";
  return typeof value === "number" ? number(value) : String(value);
}

const SIGNS = ["*", "†", "‡", "§", "¶"];

/** One footnote sign for each distinct text, in the order of the texts. */
export function footnoteSigns(texts: (string | null | undefined)[]): Map<string, string> {
  const unique = [...new Set(texts.map((text) => text ?? ""))].filter(Boolean);
  return new Map(unique.map((text, index) => [text, SIGNS[index % SIGNS.length]!.repeat(1 + Math.floor(index / SIGNS.length))]));
}
