/** What the server says, asked for once for all who show it, and again when something happened. */
import { effect, signal, type Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Problem } from "./types.ts";

export interface Answer<T> {
  data: T | null;
  error: Trouble | null;
}

/** Why there is no answer: `status` is 0 where nobody answered, -1 where the answer could not be read. */
export class Trouble extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

interface Entry {
  state: Signal<Answer<unknown>>;
  users: number;
  /** What is over will not change: it is asked for once. */
  isOver: boolean;
  asking: boolean;
  again: boolean;
  failures: number;
  /** When it was asked for last, and how long the answer took, in milliseconds. */
  askedAt: number;
  took: number;
  /** When it is asked for again. */
  timer: Timer;
  /** When it is forgotten, since nobody shows it. */
  leaving: Timer;
}

type Timer = ReturnType<typeof setTimeout> | undefined;

const MOST_SECONDS = 30;
/** An answer that took so long is asked for again after so many times as long. */
const REST = 5;
/** Milliseconds that an answer is kept after it was last shown. */
const KEPT = 10_000;
const entries = new Map<string, Entry>();

/** The moment since which the server did not answer; null while it does. */
export const awaySince = signal<number | null>(null);

/** Whether the server refused to answer without a token. */
export const isTokenNeeded = signal(false);

/** Whether whoever looks may change something here: their token may be for reading, or the server only shows a store. */
export const mayChange = signal(true);

/** Counts what happened; whoever shows something that may have changed asks again. */
export const happened = signal(0);

/** The answers of a page that was saved as one file: by path. */
const saved: Record<string, unknown> | null = readSaved();
export const isReport = saved !== null;

/** The study that a saved report is about. */
export function savedStudy(): string {
  const path = Object.keys(saved ?? {}).find((each) => each.startsWith("studies/")) ?? "";
  return decodeURIComponent(path.slice("studies/".length).split("?")[0]!);
}

function readSaved(): Record<string, unknown> | null {
  const text = globalThis.document?.getElementById("answers")?.textContent;
  return text ? (JSON.parse(text) as Record<string, unknown>) : null;
}

export function address(path: string): string {
  return new URL(`api/v1/${path}`, document.baseURI.split("#")[0]).toString();
}

/** The events behind a position, of those that are in the file. */
function savedEvents(saved: Record<string, unknown>, path: string): unknown {
  const [, after] = /\/events\?after=(\d+)/.exec(path) ?? [];
  if (after === undefined) return null;
  const { items } = saved["events"] as { items: { position: number }[] };
  const limit = Number(/limit=(\d+)/.exec(path)?.[1] ?? items.length);
  return { items: items.filter((event) => event.position > Number(after) && event.position <= Number(after) + limit), next_cursor: null };
}

/** Ask once. Throws `Trouble`. */
export async function ask<T>(path: string, init: RequestInit = {}): Promise<T> {
  if (saved) {
    if (path in saved) return saved[path] as T;
    const part = savedEvents(saved, path);
    if (part) return part as T;
    throw new Trouble(404, "This is not part of the saved report.");
  }
  let answer: Response;
  try {
    answer = await fetch(address(path), { ...init, headers: { Accept: "application/json", ...init.headers } });
  } catch {
    awaySince.value ??= Date.now();
    throw new Trouble(0, "The server does not answer.");
  }
  awaySince.value = answer.status === 503 || answer.status === 502 ? (awaySince.value ?? Date.now()) : null;
  if (answer.status === 401) isTokenNeeded.value = true;
  mayChange.value = answer.headers.get("Stagetree-Scope") !== "read";
  const text = await answer.text();
  let body: unknown;
  try {
    body = answer.headers.get("Content-Type") === "image/svg+xml" ? text : text ? JSON.parse(text) : null;
  } catch {
    throw new Trouble(answer.ok ? -1 : answer.status, `The server's answer to ${path} could not be read.`);
  }
  if (!answer.ok) throw new Trouble(answer.status, sentenceOf(body as Problem | null) ?? answer.statusText);
  return body as T;
}

/** What is wrong with which field, where a refusal says so; or else its sentence. */
function sentenceOf(problem: Problem | null): string | undefined {
  const fields = (problem?.errors ?? []).map((each) => `${each.field} ${each.problem}`.trim());
  return fields.length ? `${fields.join(". ")}.` : problem?.detail;
}

/** Ask for something to be done. */
export function tell<T>(method: string, path: string, body?: unknown): Promise<T> {
  const key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
  const headers: Record<string, string> = method === "POST" ? { "Idempotency-Key": key } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const content = body === undefined ? {} : { body: JSON.stringify(body) };
  return ask<T>(path, { method, headers, ...content });
}

/** The answer to a path, kept up to date while it is shown. `null`: nothing is asked yet. */
export function useAnswer<T>(path: string | null, isOver = false): Answer<T> {
  const entry = useMemo(() => (path === null ? null : entryOf(path)), [path]);
  useEffect(() => {
    if (path === null || entry === null) return;
    return show(path, entry, isOver);
  }, [path, entry, isOver]);
  return (entry?.state.value ?? { data: null, error: null }) as Answer<T>;
}

/** What is known of a path; the same for all who show it. */
export function entryOf(path: string): Entry {
  let entry = entries.get(path);
  if (!entry) {
    const state = signal<Answer<unknown>>({ data: null, error: null });
    const timers = { timer: undefined, leaving: undefined };
    entry = { state, users: 0, isOver: false, asking: false, again: false, failures: 0, askedAt: 0, took: 0, ...timers };
    entries.set(path, entry);
  }
  return entry;
}

/** Keep it up to date from now on. Call what comes back to stop; the answer stays for a while, for who comes back to it. */
export function show(path: string, entry: Entry, isOver: boolean): () => void {
  clearTimeout(entry.leaving);
  entries.set(path, entry);
  entry.users += 1;
  entry.isOver = isOver;
  void refresh(path, entry);
  return () => leave(path, entry);
}

function leave(path: string, entry: Entry): void {
  entry.users -= 1;
  if (entry.users) return;
  clearTimeout(entry.leaving);
  entry.leaving = setTimeout(() => {
    clearTimeout(entry.timer);
    entries.delete(path);
  }, KEPT);
}

/** In place of the time that was set before: two timers would ask twice. */
function askLater(path: string, entry: Entry, milliseconds: number): void {
  clearTimeout(entry.timer);
  entry.timer = setTimeout(() => void refresh(path, entry), milliseconds);
}

async function refresh(path: string, entry: Entry): Promise<void> {
  if (entry.asking) {
    entry.again = true;
    return;
  }
  entry.asking = true;
  clearTimeout(entry.timer);
  entry.askedAt = performance.now();
  try {
    const data = await ask<unknown>(path);
    entry.took = performance.now() - entry.askedAt;
    entry.failures = 0;
    entry.state.value = { data, error: null };
  } catch (error) {
    entry.state.value = { data: entry.state.value.data, error: error as Trouble };
    entry.failures += 1;
    const isFinal = (error as Trouble).status >= 400 && (error as Trouble).status < 500;
    const seconds = Math.min(MOST_SECONDS, 2 ** (entry.failures - 1));
    if (!isFinal && entry.users) askLater(path, entry, seconds * 1000);
  } finally {
    entry.asking = false;
  }
  if (entry.again) {
    entry.again = false;
    void refresh(path, entry);
  }
}

/** Ask again now for everything that is shown, such as after something was done. Moments that are over stay. */
export function refreshAll(): void {
  for (const [path, entry] of entries) {
    if (entry.users && !/[?&]at=/.test(path)) void refresh(path, entry);
  }
}

/** The same when something happened; what takes the server long is asked for less often. */
function refreshInTime(): void {
  for (const [path, entry] of entries) {
    if (!entry.users || /[?&]at=/.test(path) || (entry.isOver && entry.state.value.data)) continue;
    const wait = entry.askedAt + entry.took * REST - performance.now();
    if (wait <= 0) void refresh(path, entry);
    else askLater(path, entry, wait);
  }
}

if (!isReport) {
  effect(() => {
    if (happened.value) refreshInTime();
  });
}

/** The path of something about a study, at a moment. */
export function about(study: string, what: string, at: number | null, query: Record<string, string> = {}): string {
  const given = new URLSearchParams(at === null ? query : { ...query, at: String(at) }).toString();
  return `studies/${encodeURIComponent(study)}${what}${given ? `?${given}` : ""}`;
}
