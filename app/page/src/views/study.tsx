/** A study: its name, state and what can be done about it, the views of it, and the moment that is looked at. */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect } from "preact/hooks";
import { about, isReport, useAnswer } from "../data.ts";
import { count, duration, plural, share } from "../format.ts";
import { follow } from "../live.ts";
import { Badge } from "../parts/badge.tsx";
import { Guarded, TroubleNote } from "../parts/panel.tsx";
import { State } from "../parts/states.tsx";
import { Words } from "../parts/words.tsx";
import { formatRoute, moment, studyLink } from "../route.ts";
import type { History, Study } from "../types.ts";
import { Acts } from "./acts.tsx";
import { Compare } from "./compare.tsx";
import { Curves } from "./curves.tsx";
import { Events } from "./events.tsx";
import { Film } from "./film.tsx";
import { Labels } from "./labels.tsx";
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
  const answer = useAnswer<Study>(about(study, "", at, { trials: "false" }));
  // asked for behind what the view itself needs, which the server answers first
  const history = useAnswer<History>(answer.data ? about(study, "/history", null) : null);
  const isThere = history.data !== null;
  useEffect(() => {
    document.title = `${study} · stagetree`;
    if (isThere && at === null && !isReport) return follow(study, history.data!.position, Boolean(answer.data?.finished_at));
    return undefined;
  }, [study, isThere, at === null]);
  useLayoutEffect(() => scrollTo(0, 0), [view.join("/")]);
  if (answer.error?.status === 404) return <Gone study={study} said={answer.error.message} />;
  const shown = answer.data;
  return (
    <>
      {answer.error && <TroubleNote error={answer.error} isOld={shown !== null} />}
      {shown ? (
        <Guarded>
          <Head study={shown} />
        </Guarded>
      ) : (
        <h1>{study}</h1>
      )}
      <Views study={study} view={view[0] ?? ""} hasSampler={!isReport && Boolean(shown?.sampler)} />
      <div class="view">
        {shown && <Guarded key={view.join("/")}>{viewOf(view, { study: shown, at })}</Guarded>}
      </div>
      {history.data && !isReport && (
        <Guarded>
          <Scrubber history={history.data} />
        </Guarded>
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
            <Words text={text} />
          </p>
        ))}
        <Labels study={study} />
        {study.begins && <p class="quiet">This study {String(study.begins.text)}</p>}
        {study.error && (
          <p class="trouble">
            <Words text={study.error} />
          </p>
        )}
        {(study.not_exact ?? []).map((reason) => (
          <p class="quiet" key={reason}>
            Not exact: {reason}
          </p>
        ))}
        {study.exactness.audited && <p class="quiet">An audit is under way: each trial that shares steps is trained again, alone, and compared.</p>}
        {study.exactness.text && (
          <p class={study.exactness.verdict === "inexact" ? "trouble" : "quiet"} title={MEANING[study.exactness.verdict]}>
            Exactness: <Words text={study.exactness.text} />
          </p>
        )}
        {(study.unread ?? []).map((name) => (
          <p class="trouble" key={name}>
            {name} changes nothing: setup never reads it, nor do the first steps.
          </p>
        ))}
      </div>
      {!isReport && moment.value === null && <Acts study={study} />}
    </header>
  );
}

/** What each verdict on exactness stands for. */
const MEANING: Record<string, string> = {
  verified: "Around every step at which trials part, training was done again in another way, and so was a whole trial: all bits were equal.",
  checked: "Around every step at which trials part, training was done again in another way: all bits were equal.",
  unchecked: "Some trials resumed from a saved state, and training was not done again there to compare. They have a mark. An audit compares them.",
  inexact: "Training that resumed from a saved state differed from training that did not stop there.",
  unshared: "No trial resumed from a saved state or shares steps with another one.",
};

/** How far a study is that is not over: its steps as a bar, its trials, what reached each rung, and the time left. */
function ProgressStrip({ study: { progress } }: { study: Study }) {
  const { steps, trials, rungs, running, seconds_left } = progress;
  const done = steps.expected ? steps.done / steps.expected : 0;
  const slots = new Set(running.flatMap((stage) => [stage.slot, ...stage.members])).size;
  const told = [
    `${count(steps.done)} of ${rungs.length ? "about " : ""}${plural(steps.expected ?? steps.done, "different step")}`,
    trials.resting ? `${plural(trials.resting, "trial")} waiting at rungs` : "",
    rungs.length ? `at rungs: ${rungs.map((rung) => count(rung.arrived)).join(" · ")}` : "",
    `${plural(slots, "slot")} busy`,
    seconds_left === null ? "" : `about ${duration(seconds_left)} left`,
  ];
  return (
    <div class="strip">
      <progress value={done} max={1} aria-label="Steps done of those expected" />
      {told.filter(Boolean).map((text) => (
        <span key={text}>{text}</span>
      ))}
    </div>
  );
}

/** How many trials are done; of how many, as long as more are to come. */
function trialsDone({ progress: { trials } }: Study): string {
  const isMore = trials.expected !== null && trials.expected > trials.done;
  return isMore ? `${count(trials.done)} of ${plural(trials.expected!, "trial")}` : plural(trials.done, "trial");
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

function Gone({ study, said }: { study: string; said: string }) {
  return (
    <div class="empty" role="alert">
      <h1>{study}</h1>
      <p>{said}. It may have been deleted.</p>
      <p>
        <a href={formatRoute([])}>All studies</a>
      </p>
    </div>
  );
}
