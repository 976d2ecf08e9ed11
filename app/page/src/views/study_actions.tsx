/** The actions on a study, each with a confirmation dialog. */
import { useState } from "preact/hooks";
import { address, canWrite, send } from "../data.ts";
import { count, plural } from "../format.ts";
import { Dialog } from "../parts/dialog.tsx";
import { formatRoute } from "../route.ts";
import { trialCount, type Study, type TrialDetail } from "../types.ts";
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

function allowedActions(study: Study): Action[] {
  const { isolated, audited, mark, verdict } = study.exactness;
  const isToAudit = study.finished_at !== null && mark !== "" && verdict !== "inexact" && !isolated && !audited;
  return [...stateActions(study), ...(isToAudit ? (["audit"] as const) : [])];
}

function stateActions({ state, tuner, grows_by }: Study): Action[] {
  if (state === "running") return tuner === "external" ? ["complete", "pause", "trial", "note", "label", "cancel"] : ["pause", "trial", "note", "label", "cancel"];
  if (state === "paused") return ["resume", "note", "label", "cancel"];
  return state === "completed" && grows_by !== null ? ["reopen", "note", "label", "delete"] : ["note", "label", "delete"];
}

export function StudyActions({ study }: { study: Study }) {
  const [act, setAct] = useState<Action | null>(null);
  return (
    <div class="acts">
      {(canWrite.value ? allowedActions(study) : []).map((each) => (
        <button key={each} onClick={() => setAct(each)}>
          {NAMES[each]}
        </button>
      ))}
      <a class="button" href={address(`studies/${encodeURIComponent(study.study)}/report`)} download title="One HTML file that works without a server">
        Save as file
      </a>
      <a class="button" href={address(`studies/${encodeURIComponent(study.study)}/report?public=true`)} download title="The same file without paths, hosts, addresses and people">
        Save for others
      </a>
      {act && <ActionDialog study={study} act={act} close={() => setAct(null)} />}
    </div>
  );
}

function ActionDialog({ study, act, close }: { study: Study; act: Action; close: () => void }) {
  const path = `studies/${encodeURIComponent(study.study)}`;
  const command = (name: string, message: string) => async () => {
    const now = await send<Study>("POST", `${path}:${name}`);
    return `${message} The study is ${now.state}.`;
  };
  switch (act) {
    case "pause":
      return (
        <Dialog title="Pause the study?" verb="Pause" close={close} act={command("pause", "No new stage starts for it.")}>
          <p>No new stage starts until you resume the study. Running stages that no other study needs stop at their next step.</p>
        </Dialog>
      );
    case "resume":
      return (
        <Dialog title="Resume the study?" verb="Resume" close={close} act={command("resume", "It resumes from its last state.")}>
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
  return (
    <Dialog
      title="Add a trial"
      verb="Add it"
      close={close}
      act={async (form) => {
        const hp: unknown = parseHyperparameters(String(form.get("hp")));
        const added = await send<TrialDetail>("POST", `${path}/trials`, { hp, steps: Number(form.get("steps")) });
        return `Added as trial ${added.trial}: ${added.standing}.`;
      }}
    >
      <label>
        Hyper-parameters, as JSON
        <textarea name="hp" rows={10} spellcheck={false} defaultValue={example} />
      </label>
      <label>
        Steps <input name="steps" type="number" min={1} defaultValue={String(study.best?.steps ?? 1)} required />
      </label>
    </Dialog>
  );
}

function parseHyperparameters(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The hyper-parameters are not JSON: ${(error as Error).message}`);
  }
}
