/** One trial: what it is, how it went, why it is where it is, and what can be done with it. */
import { useMemo, useState } from "preact/hooks";
import { about, address, isReport, mayChange, tell, useAnswer, type Trouble } from "../data.ts";
import { number, plural, result, signsOf, spread } from "../format.ts";
import { rungLines } from "../layout/rungs.ts";
import { loggedLines } from "../parts/logged.ts";
import { reason } from "../layout/sentences.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Plot, type Line } from "../parts/plot.tsx";
import { State, Mark } from "../parts/states.tsx";
import { studyLink } from "../route.ts";
import { palette } from "../theme.ts";
import { resultOf, type History, type Logged, type Rungs, type Study, type TrialDetail } from "../types.ts";
import { Pictures } from "./overview.tsx";
import { AddNote, Notes } from "./notes.tsx";
import type { ViewProps } from "./props.ts";

export function TrialPage({ study, at, number: trial }: ViewProps & { number: number }) {
  const answer = useAnswer<TrialDetail>(about(study.study, `/trials/${trial}`, at));
  return (
    <Loaded answer={answer}>
      {(shown) => (
        <div class="overview">
          <Panel title={`Trial ${trial}`} aside={<Steps study={study} trial={trial} />}>
            {!(shown.failure && shown.value === null) && (
              <p class="value">
                <strong>
                  {number(shown.value, 6)}
                  <Mark text={shown.value === null ? null : shown.exactness} signs={signsOf([shown.exactness])} />
                </strong>{" "}
                <span class="quiet">{spread(resultOf(study, shown))}</span> <span>{study.metric}</span>
              </p>
            )}
            <p>
              <State state={shown.state} />: {shown.standing}
            </p>
            {shown.failure && <pre class="text traceback">{shown.failure.error}</pre>}
            <p class="quiet">
              {plural(shown.trained, "step")} of {shown.steps} trained
              {shown.best && `; best ${result(shown.best)} at step ${shown.best.step}`}
              {shown.last && `, last ${result(shown.last)} at step ${shown.last.step}`}
            </p>
            <Pictures study={study.study} trial={trial} marks={[shown.best?.step, shown.last?.step]} />
            <Parents study={study} trial={shown} />
            {shown.begins && <p class="quiet">It {String(shown.begins.text)}</p>}
            {shown.exactness && (
              <p class="quiet">
                {shown.value !== null && "* "}Exactness: {shown.exactness}
              </p>
            )}
            {!isReport && at === null && <TrialActs study={study} trial={shown} />}
          </Panel>
          <Panel title="Why">
            <Why study={study} at={at} trial={shown} />
          </Panel>
          <Panel title="Learning curve" class="wide">
            <Curve study={study} at={at} trial={shown} />
          </Panel>
          <Notes study={study.study} notes={shown.notes} />
          {!isReport && <LoggedCurves study={study.study} trial={trial} />}
          {!isReport && <Printed study={study.study} trial={trial} />}
        </div>
      )}
    </Loaded>
  );
}

/** What the trial goes on from, if that is more than its own beginning. */
function Parents({ study, trial }: { study: Study; trial: TrialDetail }) {
  const link = (each: number) => <a href={studyLink(study.study, ["trials", String(each)])}>trial {each}</a>;
  if (typeof trial.cooldown_of === "number") {
    return <p class="quiet">A cooldown of {link(trial.cooldown_of)}, which is ranked by this result and continues from the step where the cooldown began.</p>;
  }
  if (!trial.average_of?.length) return null;
  return (
    <p class="quiet">
      It begins with the mean of{" "}
      {trial.average_of.map((part, index) => (
        <span key={`${part.trial} ${part.step}`}>
          {index > 0 && ", "}
          {link(part.trial)} at step {part.step}
          {typeof part.value === "number" && ` (${number(part.value)})`}
        </span>
      ))}
      .
    </p>
  );
}

function Steps({ study, trial }: { study: Study; trial: number }) {
  const most = study.progress.trials.expected ?? trial + 2;
  return (
    <>
      {trial > 0 && <a href={studyLink(study.study, ["trials", String(trial - 1)])}>‹ {trial - 1}</a>}
      {trial + 1 < most && <a href={studyLink(study.study, ["trials", String(trial + 1)])}>{trial + 1} ›</a>}
    </>
  );
}

/** Every decision about the trial, with the event that made it, and how it stands for them. */
function Why({ study, at, trial }: ViewProps & { trial: TrialDetail }) {
  const answer = useAnswer<History>(about(study.study, "/history", at));
  return (
    <Loaded answer={answer}>
      {({ decisions }) => (
        <ol class="decisions">
          {decisions.position.map((position, index) => {
            if (decisions.trial[index] !== trial.trial) return null;
            const cause = reason(decisions.reason[index] as Record<string, unknown>, decisions.kind[index] === "promote");
            return (
              <li key={position}>
                <a href={studyLink(study.study, ["events"], { event: String(position) })}>event {position}</a> {said(decisions.kind[index]!, decisions.steps[index] ?? null)}
                {cause && <span>: {cause}</span>}
              </li>
            );
          })}
          <li>
            <b>{at === null ? "now" : `after event ${at}`}</b> {trial.standing}
          </li>
        </ol>
      )}
    </Loaded>
  );
}

function said(kind: string, steps: number | null): string {
  const words: Record<string, string> = { start: `asked to train to step ${steps}`, promote: `continues to step ${steps}`, stop: "stopped", cancel: "cancelled" };
  return words[kind] ?? kind;
}

function Curve({ study, at, trial }: ViewProps & { trial: TrialDetail }) {
  const rungs = useAnswer<Rungs>(about(study.study, "/rungs", at));
  const lines = useMemo<Line[]>(() => {
    const points = trial.curve.filter((point) => typeof point.metrics[study.metric] === "number");
    const [x, y] = [points.map((point) => point.step), points.map((point) => point.metrics[study.metric]!)];
    return x.length ? [{ label: `trial ${trial.trial}`, colour: palette.value.accent, width: 2, x, y }] : [];
  }, [trial, study.metric, palette.value]);
  const marks = useMemo(() => rungLines(rungs.data?.items ?? []).map((rung) => ({ x: rung.step, text: rung.name })), [rungs.data]);
  if (lines.length === 0) return <p class="quiet">Nothing is measured yet.</p>;
  return <Plot label={`${study.metric} of trial ${trial.trial} by step`} height={240} lines={lines} marks={marks} xLabel="step" />;
}

function TrialActs({ study, trial }: { study: Study; trial: TrialDetail }) {
  const [asked, setAsked] = useState<"cancel" | "note" | null>(null);
  const close = () => setAsked(null);
  const path = `studies/${encodeURIComponent(study.study)}/trials/${trial.trial}`;
  const weights = address(`studies/${encodeURIComponent(study.study)}/checkpoint?trial=${trial.trial}`);
  const repeats = resultOf(study, trial)?.repeats ?? 1;
  const canCancel = !study.finished_at && !["stopped", "failed", "cancelled"].includes(trial.state);
  return (
    <p class="buttons">
      {trial.value !== null && (
        <a class="button" href={weights} download>
          Weights
        </a>
      )}
      {trial.value !== null && repeats > 1 && <span class="quiet">weights of the first of its {repeats} repeats</span>}
      {mayChange.value && <button onClick={() => setAsked("note")}>Note</button>}
      {canCancel && mayChange.value && <button onClick={() => setAsked("cancel")}>Cancel this trial</button>}
      {asked === "note" && <AddNote study={study} trial={trial.trial} close={close} />}
      {asked === "cancel" && (
        <Dialog
          title={`Cancel trial ${trial.trial}?`}
          verb="Cancel it"
          isGrave
          close={close}
          act={async () => (await tell("DELETE", path), `Trial ${trial.trial} is cancelled: it is not trained any further for this study.`)}
        >
          <p>It is not trained any further. What it shares with other trials is still trained, and its results stay.</p>
        </Dialog>
      )}
    </p>
  );
}

/** What an address answers, once it was asked for: it may be megabytes, and is nothing to be asked for by itself. */
function useAsked<T>(path: string, read: (answer: Response) => Promise<T>) {
  const [shown, setShown] = useState<{ data: T | null; trouble: string } | null>(null);
  const load = async () => {
    try {
      const answer = await fetch(address(path));
      setShown(answer.ok ? { data: await read(answer), trouble: "" } : { data: null, trouble: ((await answer.json()) as { detail: string }).detail });
    } catch (error) {
      setShown({ data: null, trouble: (error as Trouble).message });
    }
  };
  return { shown, button: <button onClick={() => void load()}>{shown === null ? "show" : "again"}</button> };
}

function Printed({ study, trial }: { study: string; trial: number }) {
  const { shown, button } = useAsked(about(study, `/trials/${trial}/log`, null), (answer) => answer.text());
  return (
    <Panel title="What it printed" class="wide" aside={button}>
      {shown && <pre class="text">{shown.data || shown.trouble || "Nothing."}</pre>}
    </Panel>
  );
}

/** The numbers that the trainer logged between evaluations, a curve for each name. */
function LoggedCurves({ study, trial }: { study: string; trial: number }) {
  const { shown, button } = useAsked(about(study, `/trials/${trial}/metrics`, null), (answer) => answer.json() as Promise<Logged>);
  const lines = useMemo(() => loggedLines(shown?.data?.items ?? [], palette.value.accent), [shown, palette.value]);
  return (
    <Panel title="What it logged" class="wide" aside={button}>
      {shown && lines.length === 0 && <p class="quiet">{shown.trouble || "Nothing."}</p>}
      {lines.map((line) => (
        <Plot key={line.label} label={`${line.label} of trial ${trial} by step`} height={160} lines={[line]} xLabel="step" />
      ))}
    </Panel>
  );
}
