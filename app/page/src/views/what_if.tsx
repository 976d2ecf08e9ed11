/** What another tuner would have made of the results that exist: asked of the server, which trains nothing for it. */
import { useState } from "preact/hooks";
import { about, isReport, tell, type Trouble } from "../data.ts";
import { number, plural } from "../format.ts";
import { tunersNumbers } from "../layout/rungs.ts";
import { Panel } from "../parts/panel.tsx";
import type { Imagined, Study } from "../types.ts";
import type { ViewProps } from "./props.ts";

export function WhatIf({ study, at }: ViewProps) {
  const [said, setSaid] = useState<{ imagined?: Imagined; error?: string }>({});
  const [busy, setBusy] = useState(false);
  if (isReport) return null;
  const fields = tunersNumbers(study.tuner);
  const imagine = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    setBusy(true);
    try {
      const changes = { [String(form.get("field"))]: valueOf(String(form.get("value"))) };
      setSaid({ imagined: await tell<Imagined>("POST", about(study.study, ":what-if", at), { changes }) });
    } catch (error) {
      setSaid({ error: (error as Trouble).message });
    } finally {
      setBusy(false);
    }
  };
  return (
    <Panel title="What if">
      <form class="buttons" onSubmit={(event) => void imagine(event)}>
        <label>
          <span class="hidden">Field of the study file</span>
          <input name="field" list="what-if-fields" defaultValue={fields[0]} required />
        </label>
        <datalist id="what-if-fields">
          {fields.map((field) => (
            <option key={field} value={field} />
          ))}
        </datalist>
        <label>
          had been <input name="value" size={8} defaultValue="3" required />
        </label>
        <button disabled={busy}>{busy ? "Working it out …" : "Work it out"}</button>
      </form>
      {said.error && (
        <p class="trouble" role="alert">
          {said.error}
        </p>
      )}
      {said.imagined && <ImaginedText study={study} imagined={said.imagined} />}
    </Panel>
  );
}

function ImaginedText({ study, imagined }: { study: Study; imagined: Imagined }) {
  return (
    <p role="status">
      It would have asked {plural(imagined.trials, "trial")} for {plural(imagined.requested, "step")}, {number(imagined.unique)} of them different. It would not have needed{" "}
      {number(imagined.saved)} that the study trained, and would have needed {number(imagined.needed)} that were never trained.
      {imagined.not_known > 0 && ` ${plural(imagined.not_known, "result")} that would have decided are not known.`}
      {imagined.best && ` Best: trial ${imagined.best.trial} with ${study.metric} ${number(imagined.best.value)} after ${plural(imagined.best.steps, "step")}, as far as is known.`}
    </p>
  );
}

/** A number, `true`, a list: what is JSON is taken as such, anything else as text. */
function valueOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
