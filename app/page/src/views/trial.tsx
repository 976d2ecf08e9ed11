/** The page of a trial: result, decisions, learning curve, output, and actions. */
import { useMemo, useState } from "preact/hooks";
import { studyPath, address, isReport, canWrite, send, useAnswer, type RequestError } from "../data.ts";
import { number, plural, resultText, footnoteSigns, deviationText } from "../format.ts";
import { rungLines } from "../layout/rungs.ts";
import { loggedLines } from "../parts/logged_lines.ts";
import { reasonText } from "../layout/sentences.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Plot, type Line } from "../parts/plot.tsx";
import { State, Mark } from "../parts/states.tsx";
import { studyLink } from "../route.ts";
import { palette } from "../theme.ts";
import { resultOf, type History, type Logged, type Rungs, type Study, type TrialDetail } from "../types.ts";
import { ScheduleSketches } from "./answer.tsx";
import { BranchForm } from "./branch.tsx";
import { AddNote, Notes } from "./notes.tsx";
import type { ViewProps } from "./props.ts";

export function TrialPage({ study, at, number: trial }: ViewProps & { number: number }) {
  const answer = useAnswer<TrialDetail>(studyPath(study.study, `/trials/${trial}`, at));
  return (
    <Loaded answer={answer}>
      {(detail) => (
        <div class="overview">
          <Panel title={`Trial ${trial}`} aside={<NeighbourLinks study={study} trial={trial} />}>
            {!(detail.failure && detail.value === null) && (
              <p class="value">
                <strong>
                  {number(detail.value, 6)}
                  <Mark text={detail.value === null ? null : detail.exactness} signs={footnoteSigns([detail.exactness])} />
                </strong>{" "}
                <span class="quiet">{deviationText(resultOf(study, detail))}</span> <span>{study.metric}</span>
              </p>
            )}
            <p>
              <State state={detail.state} />: {detail.standing}
            </p>
            {detail.failure && <pre class="text traceback">{detail.failure.error}</pre>}
            <p class="quiet">
              {plural(detail.trained, "step")} of {detail.steps} trained
              {detail.best && `; best ${resultText(detail.best)} at step ${detail.best.step}`}
              {detail.last && `, last ${resultText(detail.last)} at step ${detail.last.step}`}
            </p>
            <ScheduleSketches study={study.study} trial={trial} marks={[detail.best?.step, detail.last?.step]} />
            <ParentTrials study={study} trial={detail} />
            {detail.begins && <p class="quiet">It {String(detail.begins.text)}</p>}
            {detail.exactness && (
              <p class="quiet">
                {detail.value !== null && "* "}Exactness: {detail.exactness}
              </p>
            )}
            {!isReport && at === null && <TrialActions study={study} trial={detail} />}
          </Panel>
          <Panel title="Why">
            <DecisionList study={study} at={at} trial={detail} />
          </Panel>
          <Panel title="Learning curve" class="wide">
            <Curve study={study} at={at} trial={detail} />
          </Panel>
          <Notes study={study.study} notes={detail.notes} />
          {!isReport && <LoggedMetrics study={study.study} trial={trial} />}
          {!isReport && <OutputPanel study={study.study} trial={trial} />}
        </div>
      )}
    </Loaded>
  );
}

/** The trials that this one continues from: the trunk of a cooldown, or the averaged states. */
function ParentTrials({ study, trial }: { study: Study; trial: TrialDetail }) {
  const link = (each: number) => <a href={studyLink(study.study, ["trials", String(each)])}>trial {each}</a>;
  if (typeof trial.cooldown_of === "number") {
    return <p class="quiet">A cooldown of {link(trial.cooldown_of)}, which is ranked by this result and continues from the step where the cooldown began.</p>;
  }
  if (!trial.average_of?.length) return null;
  return (
    <p class="quiet">
      It starts from the mean of{" "}
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

function NeighbourLinks({ study, trial }: { study: Study; trial: number }) {
  const most = study.progress.trials.expected ?? trial + 2;
  return (
    <>
      {trial > 0 && <a href={studyLink(study.study, ["trials", String(trial - 1)])}>‹ {trial - 1}</a>}
      {trial + 1 < most && <a href={studyLink(study.study, ["trials", String(trial + 1)])}>{trial + 1} ›</a>}
    </>
  );
}

/** All decisions about the trial with their events, and its standing. */
function DecisionList({ study, at, trial }: ViewProps & { trial: TrialDetail }) {
  const answer = useAnswer<History>(studyPath(study.study, "/history", at));
  return (
    <Loaded answer={answer}>
      {({ decisions }) => (
        <ol class="decisions">
          {decisions.position.map((position, index) => {
            if (decisions.trial[index] !== trial.trial) return null;
            const cause = reasonText(decisions.reason[index] as Record<string, unknown>, decisions.kind[index] === "promote");
            return (
              <li key={position}>
                <a href={studyLink(study.study, ["events"], { event: String(position) })}>event {position}</a> {decisionText(decisions.kind[index]!, decisions.steps[index] ?? null)}
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

function decisionText(kind: string, steps: number | null): string {
  const words: Record<string, string> = { start: `requested to step ${steps}`, promote: `continues to step ${steps}`, stop: "pruned", cancel: "cancelled" };
  return words[kind] ?? kind;
}

function Curve({ study, at, trial }: ViewProps & { trial: TrialDetail }) {
  const rungs = useAnswer<Rungs>(studyPath(study.study, "/rungs", at));
  const lines = useMemo<Line[]>(() => {
    const points = trial.curve.filter((point) => typeof point.metrics[study.metric] === "number");
    const [x, y] = [points.map((point) => point.step), points.map((point) => point.metrics[study.metric]!)];
    return x.length ? [{ label: `trial ${trial.trial}`, colour: palette.value.accent, width: 2, x, y }] : [];
  }, [trial, study.metric, palette.value]);
  const marks = useMemo(() => rungLines(rungs.data?.items ?? []).map((rung) => ({ x: rung.step, text: rung.name })), [rungs.data]);
  if (lines.length === 0) return <p class="quiet">{trial.failure ? "It failed before its first measurement." : "No measurements yet."}</p>;
  return <Plot label={`${study.metric} of trial ${trial.trial} by step`} height={240} lines={lines} marks={marks} xLabel="step" yLabel={study.metric} file={`${study.study}-trial-${trial.trial}`} />;
}

function TrialActions({ study, trial }: { study: Study; trial: TrialDetail }) {
  const [openDialog, setOpenDialog] = useState<"cancel" | "note" | "branch" | null>(null);
  const close = () => setOpenDialog(null);
  const path = `studies/${encodeURIComponent(study.study)}/trials/${trial.trial}`;
  const weights = address(`studies/${encodeURIComponent(study.study)}/checkpoint?trial=${trial.trial}`);
  const repeats = resultOf(study, trial)?.repeats ?? 1;
  const canCancel = !study.finished_at && !["pruned", "failed", "cancelled"].includes(trial.state);
  return (
    <p class="buttons">
      {trial.value !== null && (
        <a class="button" href={weights} download>
          Weights
        </a>
      )}
      {trial.value !== null && repeats > 1 && <span class="quiet">weights of the first of {repeats} repeats</span>}
      {canWrite.value && trial.trained > 0 && <button onClick={() => setOpenDialog("branch")}>Branch</button>}
      {canWrite.value && <button onClick={() => setOpenDialog("note")}>Note</button>}
      {canCancel && canWrite.value && (
        <button class="grave-text" onClick={() => setOpenDialog("cancel")}>
          Cancel this trial
        </button>
      )}
      {openDialog === "branch" && <BranchForm study={study} trial={trial.trial} at={Math.max(1, Math.floor(trial.trained / 2))} steps={trial.steps} close={close} />}
      {openDialog === "note" && <AddNote study={study} trial={trial.trial} close={close} />}
      {openDialog === "cancel" && (
        <Dialog
          title={`Cancel trial ${trial.trial}?`}
          verb="Cancel it"
          isDestructive
          close={close}
          act={async () => (await send("DELETE", path), `Trial ${trial.trial} is cancelled and will not be trained further for this study.`)}
        >
          <p>The trial is not trained further. Steps that it shares with other trials are still trained, and its results are kept.</p>
        </Dialog>
      )}
    </p>
  );
}

/** A response that is requested by a button, because it may be megabytes. */
function useOnDemand<T>(path: string, read: (answer: Response) => Promise<T>) {
  const [response, setResponse] = useState<{ data: T | null; error: string } | null>(null);
  const load = async () => {
    try {
      const answer = await fetch(address(path));
      setResponse(answer.ok ? { data: await read(answer), error: "" } : { data: null, error: ((await answer.json()) as { detail: string }).detail });
    } catch (error) {
      setResponse({ data: null, error: (error as RequestError).message });
    }
  };
  return { response, button: <button onClick={() => void load()}>{response === null ? "show" : "again"}</button> };
}

function OutputPanel({ study, trial }: { study: string; trial: number }) {
  const { response, button } = useOnDemand(studyPath(study, `/trials/${trial}/log`, null), (answer) => answer.text());
  return (
    <Panel title="Output" class="wide" aside={button}>
      {response && <pre class="text">{response.data || response.error || "No output."}</pre>}
    </Panel>
  );
}

/** The metrics that the trainer logged between evaluations, a plot for each name. */
function LoggedMetrics({ study, trial }: { study: string; trial: number }) {
  const { response, button } = useOnDemand(studyPath(study, `/trials/${trial}/metrics`, null), (answer) => answer.json() as Promise<Logged>);
  const lines = useMemo(() => loggedLines(response?.data?.items ?? [], palette.value.accent), [response, palette.value]);
  return (
    <Panel title="Logged metrics" class="wide" aside={button}>
      {response && lines.length === 0 && <p class="quiet">{response.error || "No metrics."}</p>}
      {lines.map((line) => (
        <Plot key={line.label} label={`${line.label} of trial ${trial} by step`} height={160} lines={[line]} xLabel="step" yLabel={line.label} file={`${study}-trial-${trial}-${line.label}`} />
      ))}
    </Panel>
  );
}
