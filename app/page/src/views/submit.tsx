/** The form for a new study, with a cost preview. */
import { useState } from "preact/hooks";
import { send, useAnswer, type RequestError } from "../data.ts";
import { cellText, count, duration, number, percent, share } from "../format.ts";
import { Panel } from "../parts/panel.tsx";
import { CodeText } from "../parts/code_text.tsx";
import { formatRoute } from "../route.ts";
import type { Preview, SlotPage, Study } from "../types.ts";

const EXAMPLE = `name: my-study
trainer: digits
metric: val_accuracy
mode: max
space:
  lr: [{family: multistep, init: 0.1, milestones: [20, 30], gamma: 0.1}, 0.1]
  bs: [64, {family: values, values: [64, 128], milestones: [24]}]
tuner: {kind: grid, max_steps: 40}
`;

export function Submit() {
  const [text, setText] = useState(EXAMPLE);
  const [slots, setSlots] = useState<number | null>(null);
  const [result, setResult] = useState<{ preview?: Preview; error?: string }>({});
  const [busy, setBusy] = useState(false);
  const slotPage = useAnswer<SlotPage>("slots");
  const trainers = useAnswer<{ items: { name: string }[] }>("trainers");
  const slotCount = slots ?? Math.max(1, slotPage.data?.items.length ?? 1);
  const run = async (act: () => Promise<void>) => {
    setBusy(true);
    try {
      await act();
    } catch (error) {
      setResult({ error: (error as RequestError).message });
    } finally {
      setBusy(false);
    }
  };
  const preview = () =>
    run(async () => setResult({ preview: await send<Preview>("POST", `studies:preview?slots=${slotCount}`, await parseYaml(text)) }));
  const submit = () =>
    run(async () => {
      const study = await send<Study>("POST", "studies", await parseYaml(text));
      location.hash = formatRoute(["studies", study.study]);
    });
  const names = (trainers.data?.items ?? []).map((trainer) => trainer.name);
  return (
    <div class="overview">
      <Panel title="New study" isPage>
        <label>
          Study file, YAML or JSON
          <textarea class="file" rows={22} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <p class="buttons">
          <label>
            slots <input type="number" min={1} max={10000} value={slotCount} onInput={(event) => setSlots(Number(event.currentTarget.value) || null)} />
          </label>
          <button disabled={busy} onClick={() => void preview()}>
            Preview cost
          </button>
          <button class="main" disabled={busy} onClick={() => void submit()}>
            Submit
          </button>
        </p>
        <p class="quiet">{names.length ? `Trainers here: ${names.join(", ")}.` : "This server has no trainer yet: start it with --trainers FILE.py."}</p>
      </Panel>
      <Panel title="Cost preview">
        {result.error && (
          <p class="trouble" role="alert">
            {result.error}
          </p>
        )}
        {result.preview ? <CostPreview preview={result.preview} slots={slotCount} /> : !result.error && <p class="quiet">The preview trains nothing.</p>}
      </Panel>
    </div>
  );
}

/** YAML includes JSON. The parser is loaded on first use. */
async function parseYaml(text: string): Promise<unknown> {
  const { load } = await import("js-yaml");
  return load(text);
}

const NAMED_FIELDS = [
  ...["trials", "requested", "unique", "merge_rate", "alone", "saved_by_sharing", "saved_by_stopping"],
  ...["critical_path_steps", "makespan_steps", "slots", "by_results"],
];

function CostPreview({ preview, slots }: { preview: Preview; slots: number }) {
  const others = Object.entries(preview).filter(([name, value]) => !NAMED_FIELDS.includes(name) && name !== "advice" && typeof value === "number");
  return (
    <>
      <p class="value">
        <strong>{share(preview.saved_by_sharing)}</strong> <span>saved by sharing</span>
      </p>
      <p class="value">
        <strong>{share(preview.saved_by_stopping)}</strong> <span>by early stopping, of the {count(preview.alone)} steps of training every trial to its end</span>
      </p>
      {preview.by_results && <p class="quiet">Assumes equal results of all trials. A run decides by its own results, so its numbers differ.</p>}
      <table class="list narrow">
        <tbody>
          <Fact name="trials" value={count(preview.trials)} />
          <Fact name="requested steps" value={count(preview.requested)} />
          <Fact name="unique steps" value={count(preview.unique)} />
          <Fact name="merge rate" value={number(preview.merge_rate, 3)} />
          <Fact name={`makespan on ${slots} slots, in steps`} value={count(preview.makespan_steps)} />
          <Fact name="critical path, in steps" value={count(preview.critical_path_steps)} />
          {preview.time && <Fact name="slot time, about" value={duration(preview.time.slot_seconds)} />}
          {preview.time && <Fact name={`time on ${slots} slots, about`} value={duration(preview.time.makespan_seconds)} />}
          {(preview.memory ?? []).map((each) => (
            <Fact key={each.gpu} name={`memory${each.gpu && ` on ${each.gpu}`}, about`} value={`${number(each.bytes / 2 ** 30, 2)} GiB`} />
          ))}
          {others.map(([name, value]) => (
            <Fact key={name} name={name.replaceAll("_", " ")} value={cellText(value)} />
          ))}
        </tbody>
      </table>
      {preview.time && (
        <p class="quiet">
          Times from {count(preview.time.settings)} settings measured here; the median error of these estimates is{" "}
          {percent(preview.time.error)}.
        </p>
      )}
      {(preview.advice ?? []).map((text) => (
        <p key={text}>
          <CodeText text={text} />
        </p>
      ))}
    </>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <tr>
      <th scope="row">{name}</th>
      <td class="n">{value}</td>
    </tr>
  );
}
