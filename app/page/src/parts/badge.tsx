/** The connection state: live, lost, ended, or a saved or past state. */
import { useEffect, useState } from "preact/hooks";
import { unreachableSince, isReport } from "../data.ts";
import { ageText } from "../format.ts";
import { freshness, lastMessageAt } from "../live.ts";
import { moment } from "../route.ts";

/** They name the connection, so that they are not read as the state of the study. */
const BADGE_TEXTS = { connecting: "○ updates: connecting", live: "● updates: live", lost: "△ connection lost", over: "■ updates: ended", deleted: "■ updates: study deleted" };

export function Badge() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 5000);
    return () => clearInterval(timer);
  }, []);
  if (isReport) return <span class="badge">■ saved report</span>;
  if (moment.value !== null) return <span class="badge past">◷ event {moment.value}</span>;
  const state = unreachableSince.value === null ? freshness.value : "lost";
  const since = state === "live" ? `, last event ${ageText(Math.max(0, now - lastMessageAt.value))} ago` : "";
  return (
    <span class={`badge ${state}`} title={`${BADGE_TEXTS[state].slice(2)}${since}`}>
      {BADGE_TEXTS[state]}
    </span>
  );
}

export function ConnectionAlert() {
  if (unreachableSince.value === null) return null;
  const since = new Date(unreachableSince.value).toLocaleTimeString([], { hour12: false });
  return (
    <p class="away" role="alert">
      The server has not responded since {since}. The page shows the last data and keeps trying.
    </p>
  );
}
