/** The page of a study: header with actions, navigation, the current view, and time travel. */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect } from "preact/hooks";
import { studyPath, isReport, useAnswer } from "../data.ts";
import { count, duration, plural, share } from "../format.ts";
import { followStudy } from "../live.ts";
import { Badge } from "../parts/badge.tsx";
import { ErrorBoundary, ErrorNote } from "../parts/panel.tsx";
import { State } from "../parts/states.tsx";
import { CodeText } from "../parts/code_text.tsx";
import { formatRoute, moment, studyLink } from "../route.ts";
import type { History, Study } from "../types.ts";
import { StudyActions } from "./study_actions.tsx";
import { Compare } from "./compare.tsx";
import { Curves } from "./curves.tsx";
import { Events } from "./events.tsx";
import { Film } from "./film.tsx";
import { StudyLabels } from "./labels.tsx";
import { Ladder } from "./ladder.tsx";
import { Moments } from "./moments.tsx";
import { Overview } from "./overview.tsx";
import { PlanTree } from "./plan_tree.tsx";
import type { ViewProps } from "./props.ts";
import { Relations } from "./relations.tsx";
import { RungTreeView } from "./rung_tree.tsx";
import { Sampler } from "./sampler.tsx";
import { Scrubber } from "./scrubber.tsx";
import { SlotsView } from "./slots.tsx";
import { TrialPage } from "./trial.tsx";
import { Trials } from "./trials.tsx";

const VIEWS: [string, string][] = [
  ["", "Overview"],
  ["rung-tree", "Rung tree"],
  ["trials", "Trials"],
  ["curves", "Curves"],
  ["rungs", "Rungs"],
  ["tree", "Tree"],
  ["slots", "Slots"],
  ["relations", "Relations"],
  ["sampler", "Sampler"],
  ["events", "Events"],
];

export function StudyPage({ study, view }: { study: string; view: string[] }) {
  const at = moment.value;
  const answer = useAnswer<Study>(studyPath(study, "", at, { trials: "false" }));
  // requested after the study, so that the server sends the data of the view first
  const history = useAnswer<History>(answer.data ? studyPath(study, "/history", null) : null);
  const isThere = history.data !== null;
  useEffect(() => {
    document.title = `${study} · stagetree`;
    if (isThere && at === null && !isReport) return followStudy(study, history.data!.position, Boolean(answer.data?.finished_at));
    return undefined;
  }, [study, isThere, at === null]);
  useLayoutEffect(() => scrollTo(0, 0), [view.join("/")]);
  if (answer.error?.status === 404) return <NotFound study={study} message={answer.error.message} />;
  const shown = answer.data;
  return (
    <>
      {answer.error && <ErrorNote error={answer.error} hasData={shown !== null} />}
      {shown ? (
        <ErrorBoundary>
          <Head study={shown} />
        </ErrorBoundary>
      ) : (
        <h1>{study}</h1>
      )}
      <Views study={study} view={view[0] ?? ""} hasSampler={!isReport && Boolean(shown?.sampler)} />
      <div class="view">
        {shown && <ErrorBoundary key={view.join("/")}>{viewOf(view, { study: shown, at })}</ErrorBoundary>}
      </div>
      {history.data && !isReport && (
        <ErrorBoundary>
          <Scrubber history={history.data} />
        </ErrorBoundary>
      )}
    </>
  );
}

function viewOf([name = "", number]: string[], props: ViewProps): ComponentChildren {
  switch (name) {
    case "trials":
      return number === undefined ? <Trials {...props} /> : <TrialPage {...props} number={Number(number)} />;
    case "rung-tree":
      return <RungTreeView {...props} />;
    case "curves":
      return <Curves {...props} />;
    case "rungs":
      return <Ladder {...props} />;
    case "tree":
      return <PlanTree {...props} />;
    case "slots":
      return <SlotsView {...props} />;
    case "relations":
      return <Relations {...props} />;
    case "sampler":
      return <Sampler {...props} />;
    case "events":
      return <Events {...props} />;
    case "compare":
      return <Compare {...props} />;
    case "film":
      return <Film {...props} />;
    case "moments":
      return <Moments {...props} />;
    default:
      return <Overview {...props} />;
  }
}

function Head({ study }: { study: Study }) {
  const failed = study.counts.failed ?? 0;
  return (
    <header class="study">
      <div>
        <h1>{study.study}</h1>
        <p class="facts">
          <State state={study.state} />
          <span class="more">{study.tuner}</span>
          <span>{trialsDone(study)}</span>
          {failed > 0 && (
            <a class="bad" href={studyLink(study.study, ["trials"], { q: "state:failed" })}>
              ▲ {failed} failed
            </a>
          )}
          {Boolean(study.cost.saved_by_sharing) && <span class="more">{share(study.cost.saved_by_sharing)} saved by sharing</span>}
          {Boolean(study.cost.saved_by_stopping) && <span class="more">{share(study.cost.saved_by_stopping)} by early stopping</span>}
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
        {study.exactness.text && (
          <p class={study.exactness.verdict === "inexact" ? "trouble" : "quiet"} title={VERDICT_TEXTS[study.exactness.verdict]}>
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

const VERDICT_TEXTS: Record<string, string> = {
  verified: "Training around every branching step and of one whole trial was repeated in another way: all bits were equal.",
  checked: "Training around every branching step was repeated in another way: all bits were equal.",
  unchecked: "Some trials resumed from a checkpoint that was not verified. They are marked. An audit verifies them.",
  inexact: "Training that resumed from a checkpoint differed from uninterrupted training.",
  unshared: "No trial resumed from a checkpoint or shares steps with another trial.",
};

/** The progress of a running study: steps, waiting trials, trials by rung, busy slots, and the time left. */
function ProgressStrip({ study: { progress } }: { study: Study }) {
  const { steps, trials, rungs, running, seconds_left } = progress;
  const done = steps.expected ? steps.done / steps.expected : 0;
  const slots = new Set(running.flatMap((stage) => [stage.slot, ...stage.members])).size;
  const facts = [
    `${count(steps.done)} of ${rungs.length ? "about " : ""}${plural(steps.expected ?? steps.done, "unique step")}`,
    trials.resting ? `${plural(trials.resting, "trial")} waiting at rungs` : "",
    rungs.length ? `at rungs: ${rungs.map((rung) => count(rung.arrived)).join(" · ")}` : "",
    `${plural(slots, "slot")} busy`,
    seconds_left === null ? "" : `about ${duration(seconds_left)} left`,
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

function Views({ study, view, hasSampler }: { study: string; view: string; hasSampler: boolean }) {
  return (
    <nav class="views" aria-label="Views of the study">
      {VIEWS.filter(([name]) => name !== "sampler" || hasSampler).map(([name, title]) => (
        <a
          key={name}
          href={studyLink(study, name ? [name] : [])}
          aria-current={name === view ? "page" : undefined}
        >
          {title}
        </a>
      ))}
    </nav>
  );
}

function NotFound({ study, message }: { study: string; message: string }) {
  return (
    <div class="empty" role="alert">
      <h1>{study}</h1>
      <p>{message}. It may have been deleted.</p>
      <p>
        <a href={formatRoute([])}>All studies</a>
      </p>
    </div>
  );
}
