/** How fresh what is shown is. */
import { useEffect, useState } from "preact/hooks";
import { awaySince, isReport } from "../data.ts";
import { ago } from "../format.ts";
import { freshness, lastHeard } from "../live.ts";
import { moment } from "../route.ts";

const WORDS = { connecting: "○ connecting", live: "● live", lost: "△ connection lost", over: "■ over", deleted: "■ deleted" };

export function Badge() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 5000);
    return () => clearInterval(timer);
  }, []);
  if (isReport) return <span class="badge">■ saved report</span>;
  if (moment.value !== null) return <span class="badge past">◷ event {moment.value}</span>;
  const state = awaySince.value === null ? freshness.value : "lost";
  const since = state === "live" ? `, last event ${ago(Math.max(0, now - lastHeard.value))} ago` : "";
  return (
    <span class={`badge ${state}`} title={`${WORDS[state].slice(2)}${since}`}>
      {WORDS[state]}
    </span>
  );
}

export function AwayNote() {
  if (awaySince.value === null) return null;
  const since = new Date(awaySince.value).toLocaleTimeString([], { hour12: false });
  return (
    <p class="away" role="alert">
      The server has not answered since {since}. You see its last answers; the page keeps trying.
    </p>
  );
}
