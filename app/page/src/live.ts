/** What happens in a study, as it happens. All pages of a browser share one stream, and one of them holds it. */
import { signal } from "@preact/signals";
import { about, address, ask, happened, refreshAll, type Trouble } from "./data.ts";
import type { LoggedEvent, Study } from "./types.ts";

type Freshness = "connecting" | "live" | "lost" | "over" | "deleted";

export const freshness = signal<Freshness>("connecting");
export const lastHeard = signal<number>(Date.now());
export const lastEvents = signal<LoggedEvent[]>([]);

const SHOWN = 12;
const GATHER_MILLISECONDS = 2000;
const HIDDEN_MILLISECONDS = 10_000;
const MOST_SECONDS = 30;
const OVER_SECONDS = 15;

interface Said {
  freshness: Freshness;
  events: LoggedEvent[];
}

/** Follow a study from behind an event on. Returns how to stop. isOver: it was, when it was last asked for. */
export function follow(study: string, after: number, isOver: boolean): () => void {
  if (!isOver) gather(); // what is shown was asked for before `after` was known: what happened in between, no stream says
  const channel = new BroadcastChannel(`stagetree ${address("")} ${study}`);
  const stopping = new AbortController();
  lastEvents.value = [];
  freshness.value = "connecting";
  const listen = (said: Said) => {
    // how it ended is shown at once, however long answers took before
    if (said.freshness === "over" && !isOver) refreshAll();
    isOver ||= said.freshness === "over";
    hear(said);
  };
  channel.onmessage = (message: MessageEvent<Said>) => listen(message.data);
  const say = (said: Said) => {
    if (stopping.signal.aborted) return;
    channel.postMessage(said);
    listen(said);
  };
  const lead = () => hold(study, after, say, stopping.signal);
  if (navigator.locks) {
    const name = `stagetree ${address("")} ${study}`;
    navigator.locks.request(name, { signal: stopping.signal }, lead).catch(() => undefined);
  } else {
    void lead();
  }
  return () => {
    stopping.abort();
    channel.close();
  };
}

let gathering: ReturnType<typeof setTimeout> | undefined;

function hear(said: Said): void {
  // whoever shows something asks, and says what is wrong: that nobody answers, or that the study is gone
  const isBad = said.freshness === "lost" || said.freshness === "deleted";
  if (isBad && freshness.value !== said.freshness) refreshAll();
  freshness.value = said.freshness;
  lastHeard.value = Date.now();
  if (!said.events.length) return;
  lastEvents.value = [...said.events.reverse(), ...lastEvents.value].slice(0, SHOWN);
  gather();
}

/** Have what is shown asked for again, once for all that happens within a while. */
function gather(): void {
  gathering ??= setTimeout(
    () => {
      gathering = undefined;
      happened.value += 1;
    },
    document.hidden ? HIDDEN_MILLISECONDS : GATHER_MILLISECONDS,
  );
}

/** Hold the stream until the page or the study goes: one that broke comes back by itself, one that was refused after a while. */
async function hold(study: string, after: number, say: (said: Said) => void, stopping: AbortSignal): Promise<void> {
  for (let failures = 0; !stopping.aborted; failures += 1) {
    const began = Date.now();
    after = await read(study, after, say, stopping);
    if (freshness.value === "deleted") return;
    const isOver = freshness.value === "over";
    if (isOver || Date.now() - began > MOST_SECONDS * 1000) failures = 0;
    await pause((isOver ? OVER_SECONDS : Math.min(MOST_SECONDS, 2 ** failures)) * 1000, stopping);
  }
}

/** One stream, to its end. Returns the position of the last event that it gave. */
function read(study: string, after: number, say: (said: Said) => void, stopping: AbortSignal): Promise<number> {
  return new Promise((resolve) => {
    const source = new EventSource(address(about(study, "/events", null, { after: String(after) })));
    let isOver = false;
    const end = () => {
      source.close();
      resolve(after);
    };
    stopping.addEventListener("abort", end, { once: true });
    source.onopen = () => say({ freshness: "live", events: [] });
    source.onmessage = (message: MessageEvent<string>) => {
      after = Number(message.lastEventId) || after;
      say({ freshness: "live", events: [JSON.parse(message.data) as LoggedEvent] });
    };
    source.addEventListener("end", (message: MessageEvent<string>) => {
      isOver = true;
      const { state } = JSON.parse(message.data) as { state: string };
      say({ freshness: state === "deleted" ? "deleted" : "over", events: [] });
      end();
    });
    source.onerror = () => {
      if (isOver) return;
      if (source.readyState === EventSource.CLOSED) {
        void refused(study).then((freshness) => {
          say({ freshness, events: [] });
          end();
        });
      } else {
        say({ freshness: "lost", events: [] });
      }
    };
  });
}

/** What a refused stream means: that nothing more will come, that the study is gone, or that something is wrong. */
async function refused(study: string): Promise<Freshness> {
  try {
    return (await ask<Study>(about(study, "", null, { trials: "false" }))).finished_at ? "over" : "lost";
  } catch (error) {
    return (error as Trouble).status === 404 ? "deleted" : "lost";
  }
}

function pause(milliseconds: number, stopping: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    stopping.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
