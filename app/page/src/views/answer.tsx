/** The answer of a study: the best result with its spread, its configuration, its lead, and how it was verified. */
import { useMemo } from "preact/hooks";
import { studyPath, address, isReport, useAnswer } from "../data.ts";
import { number, plural, deviationText } from "../format.ts";
import { configurationText, joinWords } from "../layout/configuration.ts";
import { bestRows } from "../layout/filter.ts";
import { isConstant } from "../layout/sparkline.ts";
import { CopyButton } from "../parts/copy.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Sketch } from "../parts/sketch.tsx";
import { Verification } from "../parts/verification.tsx";
import { studyLink } from "../route.ts";
import { useTable, type Table } from "../table.ts";
import { resultOf, type Schedules, type Study } from "../types.ts";
import type { ViewProps } from "./props.ts";

export function Answer({ study, at }: ViewProps) {
  const best = study.best;
  const title = (study.metrics ?? []).length > 1 ? `Best trial by ${study.metric}` : "Best trial";
  if (!best) {
    return (
      <Panel title={title}>
        <p class="quiet">No trial has a result yet.</p>
      </Panel>
    );
  }
  const result = resultOf(study, best);
  return (
    <Panel title={title} aside={<TrialLink study={study} trial={best.trial} />}>
      <p class="value">
        <strong>{number(best.value, 6)}</strong> <span class="whole">{spreadText(result)}</span>
      </p>
      <p class="metric">
        {study.metric} {study.mode === "min" ? "↓" : "↑"} <span class="quiet">at step {result?.step ?? best.steps}</span>{" "}
        <Verification verdict={best.exactness && study.exactness.verdict !== "inexact" ? "unchecked" : study.exactness.verdict} text={study.exactness.text} about={best.exactness} />
      </p>
      <Configuration study={study} trial={best.trial} hp={best.hp} marks={[best.best?.step, best.last?.step]} />
      <Lead study={study} at={at} />
      {!isReport && <Downloads study={study.study} trial={best.trial} repeats={result?.repeats ?? 1} />}
    </Panel>
  );
}

function TrialLink({ study, trial }: { study: Study; trial: number }) {
  return <a href={studyLink(study.study, ["trials", String(trial)])}>trial {trial}</a>;
}

function spreadText(result: ReturnType<typeof resultOf>): string {
  return deviationText(result) || "one run";
}

interface ConfigurationProps {
  study: Study;
  trial: number;
  hp: Record<string, unknown>;
  marks: (number | undefined)[];
}

/** The configuration as a sentence, and the lines of those hyper-parameters that change. */
function Configuration({ study, trial, hp, marks }: ConfigurationProps) {
  const answer = useAnswer<Schedules>(studyPath(study.study, `/trials/${trial}/schedules`, null));
  return (
    <Loaded answer={answer}>
      {({ items }) => {
        const moving = items.filter((item) => !isConstant(item));
        return (
          <>
            <p class="configuration">{configurationText(items, hp)}</p>
            {moving.length > 0 && <Sketches schedules={moving} marks={marks} />}
          </>
        );
      }}
    </Loaded>
  );
}

function Sketches({ schedules, marks }: { schedules: Schedules["items"]; marks: (number | undefined)[] }) {
  return (
    <dl class="schedules">
      {schedules.map((item) => (
        <Sketch key={item.name} schedule={item} marks={marks.filter((mark) => mark !== undefined)} />
      ))}
    </dl>
  );
}

/** All hyper-parameters of a trial over its steps. */
export function ScheduleSketches({ study, trial, marks }: { study: string; trial: number; marks: (number | undefined)[] }) {
  const answer = useAnswer<Schedules>(studyPath(study, `/trials/${trial}/schedules`, null));
  return <Loaded answer={answer}>{({ items }) => <Sketches schedules={items} marks={marks} />}</Loaded>;
}

/** By how much the best trial leads, or which trials are as good. */
function Lead({ study, at }: ViewProps) {
  const { data: table } = useTable(study.study, at);
  const next = useMemo(() => (table ? bestRows(table, study.mode) : []), [table, study.mode]).find((trial) => trial !== study.best?.trial);
  const results = plural(study.story.results, "trial with a result", "trials with a result");
  if ((study.metrics ?? []).length > 1) return <p class="quiet">{study.front.length === 1 ? "The only Pareto-optimal trial" : `One of ${plural(study.front.length, "Pareto-optimal trial")}`}, of {results}.</p>;
  return (
    <p class="quiet">
      Best of {results}
      {table && next !== undefined && <>, {leadText(study, table, next)}</>}.
    </p>
  );
}

function leadText(study: Study, table: Table, next: number) {
  const { equal, within_noise: near = [] } = study.story;
  if (equal.length) return <>equal to {trialsText(equal)}</>;
  if (near.length) return <>but {trialsText(near)} may be as good</>;
  const margin = Math.abs(study.best!.value - (table.get(next, "value") as number));
  return (
    <>
      {number(margin, 2)} ahead of <TrialLink study={study} trial={next} />
    </>
  );
}

const MAX_NAMED_TRIALS = 3;

/** "trials 7 and 11", or "trials 7, 8, 9 and 4 more". */
function trialsText(trials: number[]): string {
  const named = trials.slice(0, MAX_NAMED_TRIALS).map(String);
  const others = trials.length - named.length;
  return `${trials.length === 1 ? "trial" : "trials"} ${joinWords(others ? [...named, `${others} more`] : named)}`;
}

function Downloads({ study, trial, repeats }: { study: string; trial: number; repeats: number }) {
  const weights = address(`studies/${encodeURIComponent(study)}/checkpoint?trial=${trial}`);
  const server = address("").replace(/\/api\/v1\/$/, "");
  const code = `import stagetree\nfrom safetensors.torch import load_file\n\nfile = stagetree.Study.open("${study}", url="${server}").checkpoint("weights", trial=${trial})\nweights = load_file(file)  # for load_state_dict of the model\n`;
  return (
    <p class="buttons">
      <a class="button" href={weights} download>
        Weights
      </a>
      <CopyButton text={code}>Copy Python code</CopyButton>
      {repeats > 1 && <span class="quiet">of the first of {repeats} repeats</span>}
    </p>
  );
}
