/** "What if": the server simulates another setting of the tuner over the existing results, without training. */
import { useState } from "preact/hooks";
import { studyPath, isReport, send, type RequestError } from "../data.ts";
import { number, plural } from "../format.ts";
import { tunerFields } from "../layout/rungs.ts";
import { Panel } from "../parts/panel.tsx";
import type { Imagined, Study } from "../types.ts";
import type { ViewProps } from "./props.ts";

export function WhatIf({ study, at }: ViewProps) {
  const [result, setResult] = useState<{ imagined?: Imagined; error?: string }>({});
  const [busy, setBusy] = useState(false);
  if (isReport) return null;
  const fields = tunerFields(study.tuner);
  const simulate = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    setBusy(true);
    try {
      const changes = { [String(form.get("field"))]: parseValue(String(form.get("value"))) };
      setResult({ imagined: await send<Imagined>("POST", studyPath(study.study, ":what-if", at), { changes }) });
    } catch (error) {
      setResult({ error: (error as RequestError).message });
    } finally {
      setBusy(false);
    }
  };
  return (
    <Panel title="What if">
      <form class="buttons" onSubmit={(event) => void simulate(event)}>
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
        <button disabled={busy}>{busy ? "Simulating …" : "Simulate"}</button>
      </form>
      {result.error && (
        <p class="trouble" role="alert">
          {result.error}
        </p>
      )}
      {result.imagined && <ResultText study={study} imagined={result.imagined} />}
    </Panel>
  );
}

function ResultText({ study, imagined }: { study: Study; imagined: Imagined }) {
  return (
    <p role="status">
      The tuner would have requested {plural(imagined.requested, "step")} of {plural(imagined.trials, "trial")}, {number(imagined.unique)} of them unique. It would not have needed{" "}
      {number(imagined.saved)} steps that the study trained, and would have needed {number(imagined.needed)} steps that were never trained.
      {imagined.not_known > 0 && ` ${plural(imagined.not_known, "result")} needed for its decisions are unknown.`}
      {imagined.best && ` Best: trial ${imagined.best.trial} with ${study.metric} ${number(imagined.best.value)} after ${plural(imagined.best.steps, "step")}, as far as known.`}
    </p>
  );
}

/** A value is JSON, or else a string. */
function parseValue(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
