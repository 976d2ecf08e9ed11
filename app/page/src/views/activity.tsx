/** What the slots train for a study now, its latest events, and how it ended. */
import { count, percent, timeText } from "../format.ts";
import { eventText, servedText } from "../layout/sentences.ts";
import { lastEvents } from "../live.ts";
import { Panel } from "../parts/panel.tsx";
import { studyLink } from "../route.ts";
import type { LoggedEvent, Study } from "../types.ts";
import type { ViewProps } from "./props.ts";

const [MAX_RUNNING, MAX_EVENTS] = [4, 6];

/** Null for a study that has ended. */
export function Running({ study }: { study: Study }) {
  const { running } = study.progress;
  if (study.finished_at) return null;
  return (
    <Panel title="Now">
      {running.length === 0 && <p class="quiet">{study.state === "paused" ? "The study is paused." : "No slot is training for it."}</p>}
      <ul class="running">
        {running.slice(0, MAX_RUNNING).map((stage) => (
          <li key={stage.slot + stage.node}>
            <b>{stage.slot}</b>
            <progress value={stage.step - stage.start} max={Math.max(1, stage.end - stage.start)} aria-label={`${stage.slot}: step ${stage.step}`} />
            <span>
              {servedText(stage)}, step {count(stage.step)} of {count(stage.end)}
              {stage.members.length > 0 && `, with ${stage.members.join(", ")}`}
            </span>
          </li>
        ))}
      </ul>
      {running.length > MAX_RUNNING && <p class="quiet">and {count(running.length - MAX_RUNNING)} more slots</p>}
    </Panel>
  );
}

export function Activity({ study, at }: ViewProps) {
  const recent: LoggedEvent[] = at === null ? lastEvents.value : [];
  return (
    <Panel title={study.finished_at ? "How it ended" : "Latest events"} aside={<span>{progressText(study)}</span>}>
      {study.finished_at && <p class="quiet">{study.ending ? `Ended early: ${study.ending}.` : `The study is ${study.state}.`}</p>}
      {!study.finished_at && recent.length === 0 && <p class="quiet">No event since this page was opened.</p>}
      <ol class="recent">
        {recent.slice(0, MAX_EVENTS).map((event) => (
          <li key={event.position}>
            <a href={studyLink(study.study, ["events"], { event: String(event.position) })}>{event.position}</a> {eventText(event)}
          </li>
        ))}
      </ol>
    </Panel>
  );
}

function progressText(study: Study): string {
  const { done, expected } = study.progress.steps;
  const hasBegun = Object.values(study.counts).some(Boolean);
  const about = study.progress.rungs.length || !hasBegun ? "about " : "";
  return study.finished_at ? timeText(study.finished_at) : `${percent(expected ? done / expected : null)} of ${about}${count(expected)} unique steps`;
}
