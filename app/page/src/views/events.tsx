/** A window of the event log, with the payload of each event. */
import { useEffect, useMemo, useRef } from "preact/hooks";
import { studyPath, isReport, useAnswer } from "../data.ts";
import { download } from "../download.ts";
import { count, plural, timeText, zoneText } from "../format.ts";
import { PAGE_SIZE, pageRange } from "../layout/event_pages.ts";
import { eventText } from "../layout/sentences.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { route, setQuery, studyLink } from "../route.ts";
import type { EventPage, History, LoggedEvent } from "../types.ts";
import type { ViewProps } from "./props.ts";

export function Events({ study, at }: ViewProps) {
  const { data: history } = useAnswer<History>(studyPath(study.study, "/history", null));
  const head = at ?? history?.position ?? null;
  const linkedEvent = Number(route.value.query["event"]) || null;
  const range = pageRange(route.value.query);
  const answer = useAnswer<EventPage>(studyPath(study.study, "/events", at, { ...range, limit: String(PAGE_SIZE) }));
  const text = (route.value.query["q"] ?? "").toLowerCase();
  const kind = route.value.query["type"] ?? "";
  const aside = (
    <>
      <input type="search" class="filter" aria-label="Find in events" placeholder="Find in these events: trial 3, gpu0 …" value={text} onInput={(event) => setQuery({ q: event.currentTarget.value })} />
      <KindPicker items={answer.data?.items ?? []} kind={kind} />
      {answer.data && <button onClick={() => download(`${study.study}.events.jsonl`, toJsonLines(answer.data!.items), "application/x-ndjson")}>JSONL</button>}
    </>
  );
  return (
    <Panel title="Events" aside={aside}>
      <Loaded answer={answer}>
        {({ items }) => {
          const matching = items.filter((event) => (!kind || event.type === kind) && matchesText(event, text));
          return (
            <>
              <Pages items={items} head={head ?? 0} />
              <List study={study.study} items={matching.toReversed()} linkedEvent={linkedEvent} />
            </>
          );
        }}
      </Loaded>
    </Panel>
  );
}

function Pages({ items, head }: { items: LoggedEvent[]; head: number }) {
  const [first, last] = [items[0]?.position ?? 1, items.at(-1)?.position ?? head];
  const go = (changes: Record<string, string>) => setQuery({ event: "", from: "", before: "", after: "", ...changes });
  return (
    <p class="buttons">
      <button disabled={first <= 1} onClick={() => go({ before: String(first) })}>
        earlier
      </button>
      <button disabled={last >= head} onClick={() => go({ after: String(last) })}>
        later
      </button>
      <button onClick={() => go({})}>latest</button>
      <span class="quiet">
        {plural(items.length, "event")} of this study
        {items.length > 0 && `: ${count(first)} to ${count(last)}; times in ${zoneText()}`}
        {items.length > 0 && items.length <= last - first && ". Numbers left out are of other studies on its search plan"}
      </span>
    </p>
  );
}

function KindPicker({ items, kind }: { items: LoggedEvent[]; kind: string }) {
  const kinds = useMemo(() => [...new Set(items.map((event) => event.type))].sort(), [items]);
  return (
    <label>
      <span class="hidden">Type</span>
      <select value={kind} onChange={(event) => setQuery({ type: event.currentTarget.value })}>
        <option value="">all types</option>
        {kinds.map((each) => (
          <option key={each} value={each}>
            {each}
          </option>
        ))}
      </select>
    </label>
  );
}

function matchesText(event: LoggedEvent, text: string): boolean {
  return !text || `${event.position} ${event.type} ${eventText(event)} ${JSON.stringify(event.data)}`.toLowerCase().includes(text);
}

function toJsonLines(items: LoggedEvent[]): string {
  return items.map((event) => `${JSON.stringify(event)}\n`).join("");
}

function List({ study, items, linkedEvent }: { study: string; items: LoggedEvent[]; linkedEvent: number | null }) {
  if (items.length === 0) return <p class="quiet">No event matches.</p>;
  return (
    <ol class="events">
      {items.map((event) => (
        <Item key={event.position} study={study} event={event} isLinked={event.position === linkedEvent} />
      ))}
    </ol>
  );
}

function Item({ study, event, isLinked }: { study: string; event: LoggedEvent; isLinked: boolean }) {
  const row = useRef<HTMLLIElement>(null);
  useEffect(() => {
    if (isLinked) row.current?.scrollIntoView({ block: "center" });
  }, [isLinked]);
  const trial = (event.data as { trial?: number }).trial;
  return (
    <li ref={row} class={isLinked ? "wanted" : ""}>
      <details open={isLinked}>
        <summary>
          <span class="n">{event.position}</span>
          <time>{timeText(event.at)}</time>
          <span>
            {eventText(event)}
            {event.by && <span class="quiet">, by {event.by}</span>}
          </span>
        </summary>
        <p class="buttons">
          {!isReport && <a href={studyLink(study, [], { at: String(event.position) })}>the study at this event</a>}
          {trial !== undefined && <a href={studyLink(study, ["trials", String(trial)])}>trial {trial}</a>}
          <a href={studyLink(study, ["events"], { event: String(event.position) })}>link to this event</a>
          <span class="quiet">
            {event.type}, version {event.version} of the plan
          </span>
        </p>
        <pre class="text">{JSON.stringify(event.data, null, 2)}</pre>
      </details>
    </li>
  );
}
