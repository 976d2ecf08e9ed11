/** The actions on a study: one button, and menus with the others, each with a dialog. */
import { useState } from "preact/hooks";
import { address, canWrite, request, send, studyPath } from "../data.ts";
import { download } from "../download.ts";
import { count, plural } from "../format.ts";
import { formatCsv } from "../layout/filter.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Menu } from "../parts/menu.tsx";
import { Price, usePrice } from "../parts/price.tsx";
import { showToast } from "../parts/toasts.tsx";
import { formatRoute, moment } from "../route.ts";
import { Table } from "../table.ts";
import { trialCount, type Columns, type Study, type TrialDetail } from "../types.ts";
import { LabelsForm } from "./labels.tsx";
import { AddNote } from "./notes.tsx";

type Action = "pause" | "resume" | "cancel" | "reopen" | "complete" | "trial" | "note" | "label" | "delete" | "audit";

const NAMES: Record<Action, string> = {
  pause: "Pause",
  resume: "Resume",
  trial: "Add a trial",
  complete: "Complete",
  reopen: "Reopen",
  note: "Note",
  label: "Tags",
  cancel: "Cancel",
  delete: "Delete",
  audit: "Audit",
};

interface Allowed {
  /** The one action that most often comes next. */
  first: Action | null;
  others: Action[];
  /** Ends or removes the study, and cannot be undone. */
  last: Action;
}

export function allowedActions(study: Study): Allowed {
  const { state, tuner, grows_by, exactness, finished_at } = study;
  const { isolated, audited, mark, verdict } = exactness;
  const about: Action[] = ["note", "label"];
  if (state === "running") {
    return tuner === "external" ? { first: "complete", others: ["pause", "trial", ...about], last: "cancel" } : { first: "pause", others: ["trial", ...about], last: "cancel" };
  }
  if (state === "paused") return { first: "resume", others: about, last: "cancel" };
  const isToAudit = finished_at !== null && mark !== "" && verdict !== "inexact" && !isolated && !audited;
  const canGrow = state === "completed" && grows_by !== null;
  return { first: canGrow ? "reopen" : null, others: [...(isToAudit ? (["audit"] as const) : []), ...about], last: "delete" };
}

export function StudyActions({ study }: { study: Study }) {
  const [act, setAct] = useState<Action | null>(null);
  const { first, others, last } = allowedActions(study);
  const report = address(`studies/${encodeURIComponent(study.study)}/report`);
  return (
    <div class="acts">
      {canWrite.value && first && (
        <button class="main" onClick={() => setAct(first)}>
          {NAMES[first]}
        </button>
      )}
      {canWrite.value && (
        <Menu title="Actions">
          {others.map((each) => (
            <li key={each}>
              <button onClick={() => setAct(each)}>{NAMES[each]}</button>
            </li>
          ))}
          <li class="grave-item">
            <button onClick={() => setAct(last)}>{NAMES[last]}</button>
          </li>
        </Menu>
      )}
      <Menu title="Export">
        <li>
          <a href={report} download title="One HTML file that works without a server">
            Report
          </a>
        </li>
        <li>
          <a href={`${report}?public=true`} download title="The same file without paths, hosts, addresses and people">
            Report for others
          </a>
        </li>
        <li>
          <button onClick={() => void saveTrials(study.study)}>Trials, CSV</button>
        </li>
      </Menu>
      {act && <ActionDialog study={study} act={act} close={() => setAct(null)} />}
    </div>
  );
}

async function saveTrials(study: string): Promise<void> {
  try {
    const table = new Table(await request<Columns>(studyPath(study, "/trials:columns", moment.value)));
    download(`${study}.csv`, formatCsv(table, Array.from({ length: table.count }, (_, row) => row), Object.keys(table.columns)), "text/csv;charset=utf-8");
  } catch (error) {
    showToast({ text: (error as Error).message }, true);
  }
}

function ActionDialog({ study, act, close }: { study: Study; act: Action; close: () => void }) {
  const path = `studies/${encodeURIComponent(study.study)}`;
  const run = async (name: string, message: string) => `${message} The study is ${(await send<Study>("POST", `${path}:${name}`)).state}.`;
  const command = (name: string, message: string) => () => run(name, message);
  switch (act) {
    case "pause":
      return (
        <Dialog title="Pause the study?" verb="Pause" close={close} act={async () => ({ text: await run("pause", "No new stage starts for it."), undo: command("resume", "It resumes from its last state.") })}>
          <p>No new stage starts until you resume the study. Running stages that no other study needs stop at their next step.</p>
        </Dialog>
      );
    case "resume":
      return (
        <Dialog title="Resume the study?" verb="Resume" close={close} act={async () => ({ text: await run("resume", "It resumes from its last state."), undo: command("pause", "No new stage starts for it.") })}>
          <p>It resumes from its last state.</p>
        </Dialog>
      );
    case "complete":
      return (
        <Dialog title="Complete the study?" verb="Complete" close={close} act={command("complete", "It accepts no more trials.")}>
          <p>Your program requests the trials of this study. Complete the study when it needs no more.</p>
        </Dialog>
      );
    case "cancel":
      return (
        <Dialog title="Cancel the study?" verb="Cancel it" isDestructive close={close} act={command("cancel", "Its results are kept.")}>
          <p>A cancelled study cannot be resumed. Its results are kept.</p>
        </Dialog>
      );
    case "reopen":
      return <Reopen study={study} path={path} close={close} />;
    case "trial":
      return <AddTrial study={study} path={path} close={close} />;
    case "audit":
      return (
        <Dialog title="Audit the study?" verb="Audit it" close={close} act={command("audit", "Its trials are trained again and compared when slots are idle.")}>
          <p>Every trial that shares steps or resumed from a saved state is trained again, alone and from its beginning, and compared bit for bit. This costs about as many steps as training without sharing. No result changes.</p>
          <p class="quiet">Current state: {study.exactness.text}</p>
        </Dialog>
      );
    case "note":
      return <AddNote study={study} close={close} />;
    case "label":
      return <LabelsForm study={study} path={path} close={close} />;
    case "delete":
      return (
        <Dialog
          title="Delete the study?"
          verb="Delete it"
          isDestructive
          close={() => (close(), (location.hash = formatRoute([])))}
          act={async () => (await send("DELETE", path), "The study is deleted.")}
        >
          <p>The study is removed from the list. Its checkpoints are deleted unless another study needs them. Its events stay in the log.</p>
        </Dialog>
      );
  }
}

interface FormProps {
  study: Study;
  path: string;
  close: () => void;
}

function Reopen({ study, path, close }: FormProps) {
  const field = study.grows_by ?? "num_trials";
  const trials = trialCount(study);
  const now = study.grows_from ?? trials;
  const unit = field === "num_trials" ? "trials" : field;
  return (
    <Dialog
      title={`Reopen with more ${unit}`}
      verb="Reopen"
      close={close}
      act={async (form) => {
        const wanted = Number(form.get("wanted"));
        const answer = await send<Study>("POST", `${path}:reopen?num_trials=${wanted}`);
        return `The study is ${answer.state}, and will have ${count(wanted)} ${unit}.`;
      }}
    >
      <label>
        <span>
          {unit[0]!.toUpperCase() + unit.slice(1)} in all
        </span>{" "}
        <input name="wanted" type="number" min={now + 1} defaultValue={String(now * 2)} required />
      </label>
      <p class="quiet">It has {plural(trials, "trial")}. Results and promotions are kept, and no step is trained twice.</p>
    </Dialog>
  );
}

function AddTrial({ study, path, close }: FormProps) {
  const example = JSON.stringify(study.best?.hp ?? {}, null, 2);
  const [price, askPrice] = usePrice(`${path}/trials:price`, trialBody);
  return (
    <Dialog
      title="Add a trial"
      verb="Add it"
      close={close}
      onInput={askPrice}
      act={async (form) => {
        const added = await send<TrialDetail>("POST", `${path}/trials`, trialBody(form));
        const undo = async () => (await send("DELETE", `${path}/trials/${added.trial}`), `Trial ${added.trial} is cancelled.`);
        return { text: `Added as trial ${added.trial}: ${added.standing}.`, undo };
      }}
    >
      <label>
        Hyper-parameters, as JSON
        <textarea name="hp" rows={10} spellcheck={false} defaultValue={example} />
      </label>
      <label>
        Steps <input name="steps" type="number" min={1} defaultValue={String(study.best?.steps ?? 1)} required />
      </label>
      <Price sentence={price} />
    </Dialog>
  );
}

function trialBody(form: FormData): unknown {
  return { hp: parseHyperparameters(String(form.get("hp"))), steps: Number(form.get("steps")) };
}

function parseHyperparameters(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The hyper-parameters are not JSON: ${(error as Error).message}`);
  }
}
