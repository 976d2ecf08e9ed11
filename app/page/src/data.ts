/** A cache of server responses by path. Components share one request, and changes of the study trigger new requests. */
import { effect, signal, type Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { Problem } from "./types.ts";

export interface Answer<T> {
  data: T | null;
  error: RequestError | null;
}

/** A failed request. `status` is 0 without a response, and -1 for a response that is not valid JSON. */
export class RequestError extends Error {
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

interface Entry {
  state: Signal<Answer<unknown>>;
  subscribers: number;
  /** The response will not change, such as that of an ended study. It is requested once. */
  isImmutable: boolean;
  isLoading: boolean;
  isRequestedAgain: boolean;
  failures: number;
  /** By `performance.now()`. */
  requestedAt: number;
  /** Duration of the last request. */
  milliseconds: number;
  refreshTimer: Timer;
  /** Runs while there are no subscribers. */
  evictionTimer: Timer;
}

type Timer = ReturnType<typeof setTimeout> | undefined;

const MAX_RETRY_SECONDS = 30;
/** Minimum time between two requests of a path, as a multiple of the duration of the last request. */
const REFRESH_PAUSE_FACTOR = 5;
/** How long a response stays cached after its last subscriber has left. */
const KEEP_MILLISECONDS = 10_000;
const entries = new Map<string, Entry>();

/** Timestamp of the first failed request in a row, in milliseconds; null while the server responds. */
export const unreachableSince = signal<number | null>(null);

/** Whether the server responded with 401. */
export const isTokenNeeded = signal(false);

/** False for a token with read scope, and for a server that opened a store read only. */
export const canWrite = signal(true);

/** Counts changes of the data. Each increment refreshes the subscribed paths. */
export const changeCount = signal(0);

/** The responses of a saved report, by path; null on a live page. */
const savedAnswers: Record<string, unknown> | null = readSavedAnswers();
export const isReport = savedAnswers !== null;

export function savedStudyId(): string {
  const path = Object.keys(savedAnswers ?? {}).find((each) => each.startsWith("studies/")) ?? "";
  return decodeURIComponent(path.slice("studies/".length).split("?")[0]!);
}

function readSavedAnswers(): Record<string, unknown> | null {
  const text = globalThis.document?.getElementById("answers")?.textContent;
  return text ? (JSON.parse(text) as Record<string, unknown>) : null;
}

export function address(path: string): string {
  return new URL(`api/v1/${path}`, document.baseURI.split("#")[0]).toString();
}

/** A page of events from the saved report, for a request of `/events`. */
function savedEvents(saved: Record<string, unknown>, path: string): unknown {
  const [, side, position] = /\/events\?(after|before)=(\d+)/.exec(path) ?? [];
  if (position === undefined) return null;
  const { items } = saved["events"] as { items: { position: number }[] };
  const limit = Number(/limit=(\d+)/.exec(path)?.[1] ?? items.length);
  const wanted = items.filter((event) => (side === "after" ? event.position > Number(position) : event.position < Number(position)));
  return { items: side === "after" ? wanted.slice(0, limit) : wanted.slice(-limit), next_cursor: null };
}

/** Send one request, without the cache. Throws `RequestError`. */
export async function request<T>(path: string, init: RequestInit = {}): Promise<T> {
  if (savedAnswers) {
    if (path in savedAnswers) return savedAnswers[path] as T;
    const part = savedEvents(savedAnswers, path);
    if (part) return part as T;
    throw new RequestError(404, "This is not part of the saved report.");
  }
  let answer: Response;
  try {
    answer = await fetch(address(path), { ...init, headers: { Accept: "application/json", ...init.headers } });
  } catch {
    unreachableSince.value ??= Date.now();
    throw new RequestError(0, "The server does not respond.");
  }
  unreachableSince.value = answer.status === 503 || answer.status === 502 ? (unreachableSince.value ?? Date.now()) : null;
  if (answer.status === 401) isTokenNeeded.value = true;
  canWrite.value = answer.headers.get("Stagetree-Scope") !== "read";
  const text = await answer.text();
  let body: unknown;
  try {
    body = answer.headers.get("Content-Type") === "image/svg+xml" ? text : text ? JSON.parse(text) : null;
  } catch {
    throw new RequestError(answer.ok ? -1 : answer.status, `The server's response to ${path} could not be read.`);
  }
  if (!answer.ok) throw new RequestError(answer.status, problemMessage(body as Problem | null) ?? answer.statusText);
  return body as T;
}

/** The errors by field if the server listed them, or else the detail of the problem. */
function problemMessage(problem: Problem | null): string | undefined {
  const fields = (problem?.errors ?? []).map((each) => `${each.field} ${each.problem}`.trim());
  return fields.length ? `${fields.join(". ")}.` : problem?.detail;
}

/** Send a request that changes data. A POST has an idempotency key. */
export function send<T>(method: string, path: string, body?: unknown): Promise<T> {
  const key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
  const headers: Record<string, string> = method === "POST" ? { "Idempotency-Key": key } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const content = body === undefined ? {} : { body: JSON.stringify(body) };
  return request<T>(path, { method, headers, ...content });
}

/** The response to a path, kept up to date while the component is mounted. Without a path there is no request. */
export function useAnswer<T>(path: string | null, isImmutable = false): Answer<T> {
  const entry = useMemo(() => (path === null ? null : cacheEntry(path)), [path]);
  useEffect(() => {
    if (path === null || entry === null) return;
    return subscribe(path, entry, isImmutable);
  }, [path, entry, isImmutable]);
  return (entry?.state.value ?? { data: null, error: null }) as Answer<T>;
}

export function cacheEntry(path: string): Entry {
  let entry = entries.get(path);
  if (!entry) {
    const state = signal<Answer<unknown>>({ data: null, error: null });
    const timers = { refreshTimer: undefined, evictionTimer: undefined };
    entry = { state, subscribers: 0, isImmutable: false, isLoading: false, isRequestedAgain: false, failures: 0, requestedAt: 0, milliseconds: 0, ...timers };
    entries.set(path, entry);
  }
  return entry;
}

/** Keep an entry up to date. Returns the function that unsubscribes; the entry is evicted `KEEP_MILLISECONDS` later. */
export function subscribe(path: string, entry: Entry, isImmutable: boolean): () => void {
  clearTimeout(entry.evictionTimer);
  entries.set(path, entry);
  entry.subscribers += 1;
  entry.isImmutable = isImmutable;
  void refresh(path, entry);
  return () => unsubscribe(path, entry);
}

function unsubscribe(path: string, entry: Entry): void {
  entry.subscribers -= 1;
  if (entry.subscribers) return;
  clearTimeout(entry.evictionTimer);
  entry.evictionTimer = setTimeout(() => {
    clearTimeout(entry.refreshTimer);
    entries.delete(path);
  }, KEEP_MILLISECONDS);
}

/** Replaces an earlier timer, because two timers would send two requests. */
function refreshLater(path: string, entry: Entry, milliseconds: number): void {
  clearTimeout(entry.refreshTimer);
  entry.refreshTimer = setTimeout(() => void refresh(path, entry), milliseconds);
}

async function refresh(path: string, entry: Entry): Promise<void> {
  if (entry.isLoading) {
    entry.isRequestedAgain = true;
    return;
  }
  entry.isLoading = true;
  clearTimeout(entry.refreshTimer);
  entry.requestedAt = performance.now();
  try {
    const data = await request<unknown>(path);
    entry.milliseconds = performance.now() - entry.requestedAt;
    entry.failures = 0;
    entry.state.value = { data, error: null };
  } catch (error) {
    entry.state.value = { data: entry.state.value.data, error: error as RequestError };
    entry.failures += 1;
    const isFinal = (error as RequestError).status >= 400 && (error as RequestError).status < 500;
    const seconds = Math.min(MAX_RETRY_SECONDS, 2 ** (entry.failures - 1));
    if (!isFinal && entry.subscribers) refreshLater(path, entry, seconds * 1000);
  } finally {
    entry.isLoading = false;
  }
  if (entry.isRequestedAgain) {
    entry.isRequestedAgain = false;
    void refresh(path, entry);
  }
}

/** Refresh all subscribed paths now. Responses for a past event (`at=`) do not change. */
export function refreshAll(): void {
  for (const [path, entry] of entries) {
    if (entry.subscribers && !/[?&]at=/.test(path)) void refresh(path, entry);
  }
}

/** Refresh all subscribed paths that may have changed. Slow requests are repeated less often. */
function refreshChanged(): void {
  for (const [path, entry] of entries) {
    if (!entry.subscribers || /[?&]at=/.test(path) || (entry.isImmutable && entry.state.value.data)) continue;
    const wait = entry.requestedAt + entry.milliseconds * REFRESH_PAUSE_FACTOR - performance.now();
    if (wait <= 0) void refresh(path, entry);
    else refreshLater(path, entry, wait);
  }
}

if (!isReport) {
  effect(() => {
    if (changeCount.value) refreshChanged();
  });
}

/** The path of a resource of a study, as it was after event `at`. */
export function studyPath(study: string, part: string, at: number | null, query: Record<string, string> = {}): string {
  const search = new URLSearchParams(at === null ? query : { ...query, at: String(at) }).toString();
  return `studies/${encodeURIComponent(study)}${part}${search ? `?${search}` : ""}`;
}
