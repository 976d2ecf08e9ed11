/** The overview of a study: the answer, the savings and the tree first, then the trials, the cost and the activity. */
import { duration } from "../format.ts";
import { FailedTrials } from "../parts/failures.tsx";
import { Panel } from "../parts/panel.tsx";
import { CodeText } from "../parts/code_text.tsx";
import { Waterfall } from "../parts/waterfall.tsx";
import type { Study } from "../types.ts";
import { Activity, Running } from "./activity.tsx";
import { Answer } from "./answer.tsx";
import { BestOverTime } from "./best_over_time.tsx";
import { Notes } from "./notes.tsx";
import { FrontCard } from "./pareto_front.tsx";
import type { ViewProps } from "./props.ts";
import { RungTreeCard } from "./rung_tree.tsx";
import { Savings } from "./savings.tsx";
import { SideBySideCard } from "./side_by_side.tsx";
import { TopTrials } from "./top_trials.tsx";

export function Overview({ study, at }: ViewProps) {
  const hasFront = (study.metrics ?? []).length > 1;
  return (
    <>
      <div class="first">
        <div class="side">
          <Answer study={study} at={at} />
          <Savings study={study} />
          <Running study={study} />
        </div>
        {hasFront ? <FrontCard study={study} at={at} /> : <RungTreeCard study={study} at={at} />}
      </div>
      <FailedTrials study={study} />
      <div class="overview">
        <TopTrials study={study} at={at} />
        {hasFront ? <RungTreeCard study={study} at={at} /> : <FrontCard study={study} at={at} />}
        <Notes study={study.study} notes={study.notes} />
        <SideBySideCard study={study} at={at} />
        <Panel title="Cost, in steps" aside={<span>{duration(study.gpu_seconds)} of slot time</span>}>
          <Waterfall study={study} />
        </Panel>
        <BestOverTime study={study} at={at} />
        <Story study={study} />
        <Activity study={study} at={at} />
      </div>
    </>
  );
}

/** The outcome in sentences. */
function Story({ study }: { study: Study }) {
  return (
    <Panel title="In words">
      <p class="story">
        {study.story.lines.map((line) => (
          <span key={line}>
            <CodeText text={line} />{" "}
          </span>
        ))}
      </p>
    </Panel>
  );
}
