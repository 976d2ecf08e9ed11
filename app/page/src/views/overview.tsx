/** The overview of a study: the best trial, the cost, the rung tree, and the current activity. */
import { useMemo } from "preact/hooks";
import { studyPath, address, isReport, useAnswer } from "../data.ts";
import { count, duration, number, percent, plural, footnoteSigns, deviationText, timeText } from "../format.ts";
import { bestRows } from "../layout/filter.ts";
import { eventText } from "../layout/sentences.ts";
import { lastEvents } from "../live.ts";
import { CopyButton } from "../parts/copy.tsx";
import { FailedTrials } from "../parts/failures.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Plot, type Line } from "../parts/plot.tsx";
import { Sketch } from "../parts/sketch.tsx";
import { Footnotes, Mark } from "../parts/states.tsx";
import { Waterfall } from "../parts/waterfall.tsx";
import { CodeText } from "../parts/code_text.tsx";
import { route, setQuery, studyLink } from "../route.ts";
import { useTable } from "../table.ts";
import { palette } from "../theme.ts";
import { lastMoment, resultOf, type History, type LoggedEvent, type Schedules, type Study } from "../types.ts";
import { FrontCard } from "./pareto_front.tsx";
import { Notes } from "./notes.tsx";
import { RungTreeCard } from "./rung_tree.tsx";
import { SideBySideCard } from "./side_by_side.tsx";
import type { ViewProps } from "./props.ts";

export function Overview({ study, at }: ViewProps) {
  return (
    <div class="overview">
      <p class="story">
        {study.story.lines.map((line) => (
          <span key={line}>
            <CodeText text={line} />{" "}
          </span>
        ))}
      </p>
      <BestTrial study={study} at={at} />
      <Panel title="Cost, in steps" aside={<span>{duration(study.gpu_seconds)} of slot time</span>}>
        <Waterfall study={study} />
      </Panel>
      <SideBySideCard study={study} at={at} />
      <FailedTrials study={study} />
      <FrontCard study={study} at={at} />
      <RungTreeCard study={study} at={at} />
      <Notes study={study.study} notes={study.notes} />
      <BestOverTime study={study} at={at} />
      <Activity study={study} at={at} />
    </div>
  );
}

function BestTrial({ study, at }: ViewProps) {
  const best = study.best;
  if (!best) {
    return (
      <Panel title="Best trial">
        <p class="quiet">No trial has a result yet.</p>
      </Panel>
    );
  }
  const link = studyLink(study.study, ["trials", String(best.trial)]);
  const signs = footnoteSigns([best.exactness]);
  return (
    <Panel title="Best trial" aside={<a href={link}>trial {best.trial}</a>}>
      <p class="value">
        <strong>
          {number(best.value, 6)}
          <Mark text={best.exactness} signs={signs} />
        </strong>{" "}
        <span class="quiet">{deviationText(resultOf(study, best))}</span> <span>{study.metric}</span>
      </p>
      <p class="quiet">
        {rankText(study)}, after {plural(best.steps, "step")}
        {best.last && best.best && best.best.step !== best.last.step && (
          <>
            ; best {number(best.best.value, 6)} at step {best.best.step}, last {number(best.last.value, 6)} at step {best.last.step}
          </>
        )}
      </p>
      <Footnotes signs={signs} />
      <ScheduleSketches study={study.study} trial={best.trial} marks={[best.best?.step, best.last?.step]} />
      {(study.metrics ?? []).length < 2 && <RunnersUp study={study} at={at} />}
      {!isReport && <Downloads study={study.study} trial={best.trial} repeats={resultOf(study, best)?.repeats ?? 1} />}
    </Panel>
  );
}

/** The number of compared trials, the same as in the story above. */
function rankText({ metrics, metric, value, story }: Study): string {
  const trials = plural(story.results, "trial with a result", "trials with a result");
  if ((metrics ?? []).length > 1) return `the best by ${metric} on the front, of ${trials}`;
  return `the best of ${trials}, by the ${value} measurement of each`;
}

export function ScheduleSketches({ study, trial, marks }: { study: string; trial: number; marks: (number | undefined)[] }) {
  const answer = useAnswer<Schedules>(studyPath(study, `/trials/${trial}/schedules`, null));
  return (
    <Loaded answer={answer}>
      {({ items }) => (
        <dl class="schedules">
          {items.map((item) => (
            <Sketch key={item.name} schedule={item} marks={marks.filter((mark) => mark !== undefined)} />
          ))}
        </dl>
      )}
    </Loaded>
  );
}

function Downloads({ study, trial, repeats }: { study: string; trial: number; repeats: number }) {
  const weights = address(`studies/${encodeURIComponent(study)}/checkpoint?trial=${trial}`);
  const server = address("").replace(/\/api\/v1\/$/, "");
  const code = `import stagetree\nfrom safetensors.torch import load_file\n\nfile = stagetree.Study.open("${study}", url="${server}").checkpoint("weights", trial=${trial})\nweights = load_file(file)  # for load_state_dict of the model\n`;
  return (
    <p class="buttons">
      <a class="button main" href={weights} download>
        Weights
      </a>
      <CopyButton text={code}>Copy Python code to load them</CopyButton>
      {repeats > 1 && <span class="quiet">weights of the first of {repeats} repeats</span>}
    </p>
  );
}

const MAX_RUNNERS_UP = 4;

function RunnersUp({ study, at }: ViewProps) {
  const { data: table } = useTable(study.study, at);
  const others = useMemo(() => (table ? bestRows(table, study.mode) : []), [table, study.mode]).filter((trial) => trial !== study.best?.trial);
  if (!table || others.length === 0) return null;
  const place = study.value === "best" ? "best" : "last";
  const shown = others.slice(0, MAX_RUNNERS_UP);
  const markOf = (trial: number) => table.get(trial, "exactness") as string | null;
  const signs = footnoteSigns([study.best?.exactness, ...shown.map(markOf)]);
  const more = new Map([...signs].filter(([text]) => text !== study.best?.exactness));
  return (
    <>
      <p class="quiet">
        Next best:{" "}
        {shown.map((trial, index) => (
          <span key={trial}>
            {index > 0 && " · "}
            <span class="whole">
              <a href={studyLink(study.study, ["trials", String(trial)])}>{trial}</a>: {number(table.get(trial, "value") as number)}
              <Mark text={markOf(trial)} signs={signs} />
              <span class="quiet"> {deviationText({ deviation: table.get(trial, `${place}.deviation`) as number | null, repeats: Number(table.get(trial, `${place}.repeats`)), repeats_from: Number(table.get(trial, `${place}.repeats_from`)) })}</span>
            </span>
          </span>
        ))}
      </p>
      <Footnotes signs={more} />
    </>
  );
}

function BestOverTime({ study, at }: ViewProps) {
  const answer = useAnswer<History>(studyPath(study.study, "/history", at));
  const by = route.value.query["by"] === "slots" ? "slots" : "time";
  const aside = (
    <span class="choice" role="group" aria-label="Against">
      {[
        ["time", "time"],
        ["slots", "slot time"],
      ].map(([value, text]) => (
        <button key={value} aria-pressed={by === value} onClick={() => setQuery({ by: value === "time" ? "" : value! })}>
          {text}
        </button>
      ))}
    </span>
  );
  return (
    <Panel title="Best measurement so far" aside={aside}>
      <Loaded answer={answer}>{(history) => <BestPlot study={study} history={history} by={by} />}</Loaded>
    </Panel>
  );
}

function BestPlot({ study, history, by }: { study: Study; history: History; by: string }) {
  const lines = useMemo<Line[]>(() => {
    const end = by === "slots" ? study.gpu_seconds : lastMoment(study, history) - study.submitted_at;
    const x = history.best.map((each) => (by === "slots" ? each.slot_seconds : each.at - study.submitted_at));
    const y = history.best.map((each) => each.value);
    if (y.length) [x.push(Math.max(end, x.at(-1)!)), y.push(y.at(-1)!)];
    return [{ label: "best", colour: palette.value.accent, width: 2, isStepped: true, x, y }];
  }, [history, by, study.gpu_seconds, palette.value]);
  if (history.best.length === 0) return <p class="quiet">No result yet.</p>;
  const last = history.best.at(-1)!;
  return (
    <>
      <Plot label={`Best ${study.metric} against ${by}`} height={180} lines={lines} xLabel={by === "slots" ? "slot time" : "time"} isTime />
      <p class="quiet">
        {plural(history.best.length, "improvement")}; the last, {number(last.value, 6)}, by trial {last.trial} at step {last.step},{" "}
        <a href={studyLink(study.study, ["events"], { event: String(last.position) })}>event {last.position}</a>.
        {study.value === "last" && " The best trial is chosen by the last measurement of each."}
      </p>
    </>
  );
}

function Activity({ study, at }: ViewProps) {
  const running = study.progress.running;
  const recent: LoggedEvent[] = at === null ? lastEvents.value : [];
  return (
    <Panel title={study.finished_at ? "End" : "Activity"} aside={<span>{progressText(study)}</span>}>
      {running.length === 0 && <p class="quiet">{idleText(study)}</p>}
      <ul class="running">
        {running.map((stage) => (
          <li key={stage.slot + stage.node}>
            <b>{stage.slot}</b>
            <progress value={stage.step - stage.start} max={Math.max(1, stage.end - stage.start)} aria-label={`${stage.slot}: step ${stage.step}`} />
            <span>
              step {count(stage.step)} of {count(stage.end)} for {stage.trial_count > 1 ? `${stage.trial_count} trials` : `trial ${stage.trials[0] ?? "?"}`}
              {stage.members.length > 0 && `, with ${stage.members.join(", ")}`}
            </span>
          </li>
        ))}
      </ul>
      {recent.length > 0 && (
        <ol class="recent">
          {recent.slice(0, 6).map((event) => (
            <li key={event.position}>
              <a href={studyLink(study.study, ["events"], { event: String(event.position) })}>{event.position}</a> {eventText(event)}
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}

function progressText(study: Study): string {
  const { done, expected } = study.progress.steps;
  const hasBegun = Object.values(study.counts).some(Boolean);
  const about = study.progress.rungs.length || !hasBegun ? "about " : "";
  return study.finished_at ? timeText(study.finished_at) : `${percent(expected ? done / expected : null)} of ${about}${count(expected)} unique steps`;
}

function idleText(study: Study): string {
  if (study.finished_at) return study.ending ? `Ended early: ${study.ending}.` : `The study is ${study.state}.`;
  return study.state === "paused" ? "The study is paused." : "No slot is training for it now.";
}
