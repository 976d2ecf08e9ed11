/** What can be done about a study: each asks what it must, and says what it did. */
import { useState } from "preact/hooks";
import { address, mayChange, tell } from "../data.ts";
import { count, plural } from "../format.ts";
import { Dialog } from "../parts/dialog.tsx";
import { formatRoute } from "../route.ts";
import { trialCount, type Study, type TrialDetail } from "../types.ts";
import { ChangeLabels } from "./labels.tsx";
import { AddNote } from "./notes.tsx";

type Act = "pause" | "resume" | "cancel" | "reopen" | "complete" | "trial" | "note" | "label" | "delete" | "audit";

const NAMES: Record<Act, string> = {
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

/** What a study in this state can be asked to do. */
function possible(study: Study): Act[] {
  const { isolated, audited, mark, verdict } = study.exactness;
  const isToAudit = study.finished_at !== null && mark !== "" && verdict !== "inexact" && !isolated && !audited;
  return [...ofState(study), ...(isToAudit ? (["audit"] as const) : [])];
}

function ofState({ state, tuner, grows_by }: Study): Act[] {
  if (state === "running") return tuner === "external" ? ["complete", "pause", "trial", "note", "label", "cancel"] : ["pause", "trial", "note", "label", "cancel"];
  if (state === "paused") return ["resume", "note", "label", "cancel"];
  return state === "completed" && grows_by !== null ? ["reopen", "note", "label", "delete"] : ["note", "label", "delete"];
}

export function Acts({ study }: { study: Study }) {
  const [act, setAct] = useState<Act | null>(null);
  return (
    <div class="acts">
      {(mayChange.value ? possible(study) : []).map((each) => (
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
      {act && <Question study={study} act={act} close={() => setAct(null)} />}
    </div>
  );
}

function Question({ study, act, close }: { study: Study; act: Act; close: () => void }) {
  const path = `studies/${encodeURIComponent(study.study)}`;
  const command = (name: string, said: string) => async () => {
    const now = await tell<Study>("POST", `${path}:${name}`);
    return `${said} The study is ${now.state}.`;
  };
  switch (act) {
    case "pause":
      return (
        <Dialog title="Pause the study?" verb="Pause" close={close} act={command("pause", "No new stage is started for it.")}>
          <p>No new stage is started until you resume it. Stages under way that no other study needs end at their next step.</p>
        </Dialog>
      );
    case "resume":
      return (
        <Dialog title="Resume the study?" verb="Resume" close={close} act={command("resume", "It resumes where it was.")}>
          <p>It resumes where it was.</p>
        </Dialog>
      );
    case "complete":
      return (
        <Dialog title="Complete the study?" verb="Complete" close={close} act={command("complete", "Nothing more is asked for.")}>
          <p>A program of yours asks for its trials. Complete the study when it will ask for no more.</p>
        </Dialog>
      );
    case "cancel":
      return (
        <Dialog title="Cancel the study for good?" verb="Cancel it" isGrave close={close} act={command("cancel", "Its results so far stay.")}>
          <p>It cannot be resumed. Its results so far stay.</p>
        </Dialog>
      );
    case "reopen":
      return <Reopen study={study} path={path} close={close} />;
    case "trial":
      return <AddTrial study={study} path={path} close={close} />;
    case "audit":
      return (
        <Dialog title="Audit the study?" verb="Audit it" close={close} act={command("audit", "Its trials are trained again and compared when slots have nothing else to do.")}>
          <p>Every trial that shares steps or resumed from a saved state is trained again, alone and from its beginning, and compared bit for bit. That costs about as many steps as training without sharing. No result is changed.</p>
          <p class="quiet">So far: {study.exactness.text}</p>
        </Dialog>
      );
    case "note":
      return <AddNote study={study} close={close} />;
    case "label":
      return <ChangeLabels study={study} path={path} close={close} />;
    case "delete":
      return (
        <Dialog
          title="Delete the study?"
          verb="Delete it"
          isGrave
          close={() => (close(), (location.hash = formatRoute([])))}
          act={async () => (await tell("DELETE", path), "It is no longer listed, and nothing is kept for it.")}
        >
          <p>It is no longer listed, and its checkpoints are deleted unless another study needs them. Its events stay in the log.</p>
        </Dialog>
      );
  }
}

interface AskedProps {
  study: Study;
  path: string;
  close: () => void;
}

function Reopen({ study, path, close }: AskedProps) {
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
        const answer = await tell<Study>("POST", `${path}:reopen?num_trials=${wanted}`);
        return `The study is ${answer.state}, and will have ${count(wanted)} ${unit}.`;
      }}
    >
      <label>
        <span>
          {unit[0]!.toUpperCase() + unit.slice(1)} in all
        </span>{" "}
        <input name="wanted" type="number" min={now + 1} defaultValue={String(now * 2)} required />
      </label>
      <p class="quiet">It has {plural(trials, "trial")}. Results and promotions are kept, and nothing is trained twice.</p>
    </Dialog>
  );
}

function AddTrial({ study, path, close }: AskedProps) {
  const example = JSON.stringify(study.best?.hp ?? {}, null, 2);
  return (
    <Dialog
      title="Add a trial of your own"
      verb="Add it"
      close={close}
      act={async (form) => {
        const hp: unknown = parsed(String(form.get("hp")));
        const added = await tell<TrialDetail>("POST", `${path}/trials`, { hp, steps: Number(form.get("steps")) });
        return `It is trial ${added.trial}: ${added.standing}.`;
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

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`The hyper-parameters are not JSON: ${(error as Error).message}`);
  }
}
