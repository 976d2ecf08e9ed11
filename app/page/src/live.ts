/** Live events of a study. All tabs of a browser share one event stream, which one of them holds open. */
import { signal } from "@preact/signals";
import { studyPath, address, request, changeCount, refreshAll, type RequestError } from "./data.ts";
import type { LoggedEvent, Study } from "./types.ts";

type Freshness = "connecting" | "live" | "lost" | "over" | "deleted";

export const freshness = signal<Freshness>("connecting");
export const lastMessageAt = signal<number>(Date.now());
export const lastEvents = signal<LoggedEvent[]>([]);

const MAX_SHOWN_EVENTS = 12;
const REFRESH_MILLISECONDS = 2000;
const HIDDEN_REFRESH_MILLISECONDS = 10_000;
const MAX_RETRY_SECONDS = 30;
const ENDED_RETRY_SECONDS = 15;

interface StreamMessage {
  freshness: Freshness;
  events: LoggedEvent[];
}

/** Follow the events of a study after a position. Returns the function that stops. `hasEnded`: by the last response. */
export function followStudy(study: string, after: number, hasEnded: boolean): () => void {
  if (!hasEnded) scheduleRefresh(); // for events between the last responses and `after`, which the stream does not repeat
  const channel = new BroadcastChannel(`stagetree ${address("")} ${study}`);
  const abort = new AbortController();
  lastEvents.value = [];
  freshness.value = "connecting";
  const handle = (message: StreamMessage) => {
    // the final state is requested at once, even if requests are slow
    if (message.freshness === "over" && !hasEnded) refreshAll();
    hasEnded ||= message.freshness === "over";
    applyMessage(message);
  };
  channel.onmessage = (event: MessageEvent<StreamMessage>) => handle(event.data);
  const publish = (message: StreamMessage) => {
    if (abort.signal.aborted) return;
    channel.postMessage(message);
    handle(message);
  };
  const leadStream = () => holdStream(study, after, publish, abort.signal);
  if (navigator.locks) {
    const name = `stagetree ${address("")} ${study}`;
    navigator.locks.request(name, { signal: abort.signal }, leadStream).catch(() => undefined);
  } else {
    void leadStream();
  }
  return () => {
    abort.abort();
    channel.close();
  };
}

let refreshTimer: ReturnType<typeof setTimeout> | undefined;

function applyMessage(message: StreamMessage): void {
  // the new requests fail, and views show why
  const isUnavailable = message.freshness === "lost" || message.freshness === "deleted";
  if (isUnavailable && freshness.value !== message.freshness) refreshAll();
  freshness.value = message.freshness;
  lastMessageAt.value = Date.now();
  if (!message.events.length) return;
  lastEvents.value = [...message.events.reverse(), ...lastEvents.value].slice(0, MAX_SHOWN_EVENTS);
  scheduleRefresh();
}

/** Refresh the subscribed paths soon, once for all events until then. */
function scheduleRefresh(): void {
  refreshTimer ??= setTimeout(
    () => {
      refreshTimer = undefined;
      changeCount.value += 1;
    },
    document.hidden ? HIDDEN_REFRESH_MILLISECONDS : REFRESH_MILLISECONDS,
  );
}

/** Keep the stream open until the abort, or until the study is deleted. The browser reconnects a broken stream; a refused one is opened again after a pause. */
async function holdStream(study: string, after: number, publish: (message: StreamMessage) => void, signal: AbortSignal): Promise<void> {
  for (let failures = 0; !signal.aborted; failures += 1) {
    const began = Date.now();
    after = await readStream(study, after, publish, signal);
    if (freshness.value === "deleted") return;
    const hasEnded = freshness.value === "over";
    if (hasEnded || Date.now() - began > MAX_RETRY_SECONDS * 1000) failures = 0;
    await sleep((hasEnded ? ENDED_RETRY_SECONDS : Math.min(MAX_RETRY_SECONDS, 2 ** failures)) * 1000, signal);
  }
}

/** Read one stream to its end. Returns the position of its last event. */
function readStream(study: string, after: number, publish: (message: StreamMessage) => void, signal: AbortSignal): Promise<number> {
  return new Promise((resolve) => {
    const source = new EventSource(address(studyPath(study, "/events", null, { after: String(after) })));
    let hasEnded = false;
    const end = () => {
      source.close();
      resolve(after);
    };
    signal.addEventListener("abort", end, { once: true });
    source.onopen = () => publish({ freshness: "live", events: [] });
    source.onmessage = (message: MessageEvent<string>) => {
      after = Number(message.lastEventId) || after;
      publish({ freshness: "live", events: [JSON.parse(message.data) as LoggedEvent] });
    };
    source.addEventListener("end", (message: MessageEvent<string>) => {
      hasEnded = true;
      const { state } = JSON.parse(message.data) as { state: string };
      publish({ freshness: state === "deleted" ? "deleted" : "over", events: [] });
      end();
    });
    source.onerror = () => {
      if (hasEnded) return;
      if (source.readyState === EventSource.CLOSED) {
        void checkRefusal(study).then((freshness) => {
          publish({ freshness, events: [] });
          end();
        });
      } else {
        publish({ freshness: "lost", events: [] });
      }
    };
  });
}

/** Why a stream was refused: the study has ended, was deleted, or the connection is lost. */
async function checkRefusal(study: string): Promise<Freshness> {
  try {
    return (await request<Study>(studyPath(study, "", null, { trials: "false" }))).finished_at ? "over" : "lost";
  } catch (error) {
    return (error as RequestError).status === 404 ? "deleted" : "lost";
  }
}

function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
