/** The form that branches a trial off another one, with the price in new steps before it is requested. */
import { useEffect, useRef, useState } from "preact/hooks";
import { send, type RequestError } from "../data.ts";
import { count, plural } from "../format.ts";
import { parseAttributes } from "../layout/studies.ts";
import { Dialog } from "../parts/dialog.tsx";
import type { Branch, Study } from "../types.ts";

const PRICE_MILLISECONDS = 300;

interface Props {
  study: Study;
  trial: number;
  /** The last step that both trials share. */
  at: number;
  steps: number;
  close: () => void;
}

export function BranchForm({ study, trial, at, steps, close }: Props) {
  const path = `studies/${encodeURIComponent(study.study)}`;
  const [price, setPrice] = useState("");
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const ask = async (form: FormData) => {
    try {
      setPrice(priceText(await send<Branch>("POST", `${path}/trials:branch?preview=true`, branchBody(trial, form))));
    } catch (error) {
      setPrice((error as RequestError).message);
    }
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const askLater = (form: FormData) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => void ask(form), PRICE_MILLISECONDS);
  };
  const act = async (form: FormData) => {
    const made = await send<Branch>("POST", `${path}/trials:branch`, branchBody(trial, form));
    const number = made.trial!.trial;
    const undo = async () => (await send("DELETE", `${path}/trials/${number}`), `Trial ${number} is cancelled.`);
    return { text: `Branched as trial ${number}: ${plural(made.new, "new step")}.`, undo };
  };
  return (
    <Dialog title={`Branch off trial ${trial}`} verb="Branch" close={close} act={act} onInput={askLater}>
      <label>
        After step <input name="at" type="number" min={1} defaultValue={String(at)} required />
      </label>
      <label>
        What differs from there on, one per line: name = value
        <textarea name="hp" rows={4} spellcheck={false} required placeholder={`${Object.keys(study.best?.hp ?? { lr: 0 })[0]} = …`} />
      </label>
      <label>
        Steps in all <input name="steps" type="number" min={1} defaultValue={String(steps)} required />
      </label>
      <p class="quiet" role="status">
        {price || "The price is shown as you type."}
      </p>
    </Dialog>
  );
}

function branchBody(trial: number, form: FormData): Record<string, unknown> {
  return { trial, at: Number(form.get("at")), hp: parseAttributes(String(form.get("hp"))), steps: Number(form.get("steps")) };
}

function priceText({ steps, shared, new: fresh, again }: Branch): string {
  return `${plural(fresh, "new step")} of ${count(steps)}; ${count(shared)} are shared${again ? `, and ${count(again)} are trained again` : ""}.`;
}
