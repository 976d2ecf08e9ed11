/** The page of a study: header, navigation, the current view, and time travel. */
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect } from "preact/hooks";
import { studyPath, isReport, useAnswer } from "../data.ts";
import { followStudy } from "../live.ts";
import { ErrorBoundary, ErrorNote } from "../parts/panel.tsx";
import { formatRoute, moment } from "../route.ts";
import type { History, Study } from "../types.ts";
import { Compare } from "./compare.tsx";
import { Curves } from "./curves.tsx";
import { Events } from "./events.tsx";
import { Film } from "./film.tsx";
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
import { StudyHead } from "./study_head.tsx";
import { Tabs, TreeTabs } from "./tabs.tsx";
import { TrialPage } from "./trial.tsx";
import { Trials } from "./trials.tsx";

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
          <StudyHead study={shown} />
        </ErrorBoundary>
      ) : (
        <h1>{study}</h1>
      )}
      <Tabs study={study} view={view[0] ?? ""} hasSampler={!isReport && Boolean(shown?.sampler)} />
      <div class="view">
        {view[0] === "tree" && <TreeTabs study={study} view={view[1] ?? ""} />}
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
    case "tree":
      return number === "rungs" ? <Ladder {...props} /> : number === "stages" ? <PlanTree {...props} /> : <RungTreeView {...props} />;
    case "curves":
      return <Curves {...props} />;
    case "timeline":
      return <SlotsView {...props} />;
    case "importance":
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
