/** The header of a study: its name, its state, what needs attention, and its actions. */
import { useRef } from "preact/hooks";
import { isReport } from "../data.ts";
import { count, duration, plural } from "../format.ts";
import { TimeLeft } from "../layout/time_left.ts";
import { Badge } from "../parts/badge.tsx";
import { CodeText } from "../parts/code_text.tsx";
import { State } from "../parts/states.tsx";
import { moment, studyLink } from "../route.ts";
import type { Study } from "../types.ts";
import { StudyLabels } from "./labels.tsx";
import { StudyActions } from "./study_actions.tsx";

export function StudyHead({ study }: { study: Study }) {
  const failed = study.counts.failed ?? 0;
  return (
    <header class="study">
      <div>
        {isReport && <p class="quiet">{study.study}</p>}
        <h1>{(isReport && study.story.question) || study.study}</h1>
        <p class="facts">
          <State state={study.state} />
          <span class="more">{study.tuner}</span>
          <span>{trialsDone(study)}</span>
          {failed > 0 && (
            <a class="bad" href={studyLink(study.study, ["trials"], { q: "state:failed" })}>
              ▲ {failed} failed
            </a>
          )}
          <span>{duration(study.wall_seconds)}</span>
          {study.ending && <span>{study.ending}</span>}
          <Badge />
        </p>
        {study.finished_at === null && <ProgressStrip study={study} />}
        {(study.waits_for ?? []).map((text) => (
          <p class="trouble" key={text}>
            <CodeText text={text} />
          </p>
        ))}
        <StudyLabels study={study} />
        {study.begins && <p class="quiet">This study {String(study.begins.text)}</p>}
        {study.error && (
          <p class="trouble">
            <CodeText text={study.error} />
          </p>
        )}
        {(study.not_exact ?? []).map((reason) => (
          <p class="quiet" key={reason}>
            Not exact: {reason}
          </p>
        ))}
        {study.exactness.audited && <p class="quiet">An audit is under way: each trial that shares steps is trained again, alone, and compared.</p>}
        {study.exactness.verdict === "inexact" && (
          <p class="trouble">
            Exactness: <CodeText text={study.exactness.text} />
          </p>
        )}
        {(study.unread ?? []).map((name) => (
          <p class="trouble" key={name}>
            {name} changes nothing: setup never reads it, nor do the first steps.
          </p>
        ))}
      </div>
      {!isReport && moment.value === null && <StudyActions study={study} />}
    </header>
  );
}

/** The progress of a running study: steps, waiting trials, trials by rung, busy slots, and the time left. */
function ProgressStrip({ study: { progress } }: { study: Study }) {
  const { steps, trials, rungs, running } = progress;
  const left = useRef(new TimeLeft());
  const secondsLeft = left.current.next(progress.seconds_left, performance.now() / 1000);
  const done = steps.expected ? steps.done / steps.expected : 0;
  const slots = new Set(running.flatMap((stage) => [stage.slot, ...stage.members])).size;
  const facts = [
    `${count(steps.done)} of ${rungs.length ? "about " : ""}${plural(steps.expected ?? steps.done, "unique step")}`,
    secondsLeft === null ? "" : `about ${duration(secondsLeft)} left`,
    `${plural(slots, "slot")} busy`,
    rungs.length ? `results by rung: ${rungs.map((rung) => count(rung.arrived)).join(" · ")}` : "",
    trials.resting ? `${plural(trials.resting, "trial")} waiting` : "",
  ];
  return (
    <div class="strip">
      <progress value={done} max={1} aria-label="Steps done of those expected" />
      {facts.filter(Boolean).map((text) => (
        <span key={text}>{text}</span>
      ))}
    </div>
  );
}

/** "3 of 12 trials", or "12 trials" when all are done. */
function trialsDone({ progress: { trials } }: Study): string {
  const hasMore = trials.expected !== null && trials.expected > trials.done;
  return hasMore ? `${count(trials.done)} of ${plural(trials.expected!, "trial")}` : plural(trials.done, "trial");
}
