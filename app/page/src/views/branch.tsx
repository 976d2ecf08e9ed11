/** The form that branches a trial off another one, with the price in new steps before it is requested. */
import { send } from "../data.ts";
import { count, plural } from "../format.ts";
import { parseAttributes } from "../layout/studies.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Price, usePrice } from "../parts/price.tsx";
import type { Branch, Study } from "../types.ts";

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
  const [price, askPrice] = usePrice(`${path}/trials:branch?preview=true`, (form) => branchBody(trial, form), priceAfter(at, steps));
  const act = async (form: FormData) => {
    const made = await send<Branch>("POST", `${path}/trials:branch`, branchBody(trial, form));
    const number = made.trial!.trial;
    const undo = async () => (await send("DELETE", `${path}/trials/${number}`), `Trial ${number} is cancelled.`);
    return { text: `Branched as trial ${number}: ${plural(made.new, "new step")}.`, undo };
  };
  return (
    <Dialog title={`Branch off trial ${trial}`} verb="Branch" close={close} act={act} onInput={askPrice}>
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
      <Price sentence={price} />
    </Dialog>
  );
}

/** Before anything differs: the steps after the branch, as far as no other trial has them. */
function priceAfter(at: number, steps: number): string {
  return `${plural(Math.max(0, steps - at), "new step")} of ${count(steps)}; ${count(at)} are shared. The exact price is shown as you type.`;
}

function branchBody(trial: number, form: FormData): Record<string, unknown> {
  return { trial, at: Number(form.get("at")), hp: parseAttributes(String(form.get("hp"))), steps: Number(form.get("steps")) };
}
