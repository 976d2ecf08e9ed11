/** The cost of a study in steps: without savings, the savings, and the steps run. */
import { count, plural, share } from "../format.ts";
import type { Study } from "../types.ts";

export interface Bar {
  name: string;
  title: string;
  steps: number;
  from: number;
  kind: "total" | "saved" | "plain" | "again" | "run";
}

const ISOLATED_REASON = "the trainer is not exact, so a longer trial starts from step 0";

/** The bars from "alone" to "run". Bars of zero steps are left out. */
export function costBars(cost: Study["cost"], isIsolated = false): Bar[] {
  const parts: [string, string, number, Bar["kind"]][] = [
    ["stopped early", "steps that the tuner decided not to train", -cost.stopped_early, "saved"],
    ["unfinished", "steps that are neither trained nor saved", -cost.unfinished, "plain"],
    ["shared", "steps that several trials need, trained once", -cost.shared, "saved"],
    ["known", "steps that another study had trained", -cost.known, "saved"],
    ["repeated", `trained again, because ${isIsolated ? ISOLATED_REASON : "a later trial branches where no checkpoint was kept"}`, cost.repeated, "again"],
    ["retried", "trained again after errors of the trainer", cost.retried, "again"],
    ["lost", "trained again because a worker was lost", cost.lost, "again"],
    ["struck", "trained again because the trainer is not exact", cost.struck, "again"],
  ];
  let level = cost.alone;
  const rows: Bar[] = [{ name: "alone", title: "every trial trained alone to the end", steps: cost.alone, from: 0, kind: "total" }];
  for (const [name, title, steps, kind] of parts) {
    if (steps) rows.push({ name, title, steps, from: Math.min(level, level + steps), kind });
    level += steps;
  }
  return [...rows, { name: "run", title: "steps that slots trained for this study", steps: cost.run, from: 0, kind: "run" }];
}

export function Waterfall({ study }: { study: Study }) {
  const most = Math.max(1, study.cost.alone, study.cost.run);
  const isIsolated = study.exactness.isolated;
  return (
    <>
      <table class="waterfall">
        <caption class="hidden">The cost of the study with and without savings</caption>
        <tbody>
          {costBars(study.cost, isIsolated).map((bar) => (
            <tr key={bar.name} class={bar.kind}>
              <th scope="row" title={bar.title}>
                {bar.name}
              </th>
              <td class="n">{count(bar.steps)}</td>
              <td class="bar" aria-hidden="true">
                <svg viewBox={`0 0 ${most} 10`} preserveAspectRatio="none" width="100%" height="14">
                  <rect x={bar.from} y="0" width={Math.max(Math.abs(bar.steps), most / 300)} height="10" />
                </svg>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <Savings cost={study.cost} />
      {study.exactness.proof_steps > 0 && (
        <p class="quiet">
          +{plural(study.exactness.proof_steps, "verification step")}: included in the slot time, not in the steps run.
        </p>
      )}
      {study.cost.repeated > 0 && (
        <p class="quiet">
          {plural(study.cost.repeated, "step")} repeated: {isIsolated ? ISOLATED_REASON : "a later trial branches where no checkpoint was kept, and resumed from the checkpoint before"}.
        </p>
      )}
      {study.cost.retried > 0 && (
        <p class="quiet">{plural(study.cost.retried, "step")} retried after errors of the trainer, from the last checkpoint.</p>
      )}
      {study.cost.lost > 0 && <p class="quiet">{plural(study.cost.lost, "step")} trained again because a worker was lost.</p>}
    </>
  );
}

/** The savings by sharing and by early stopping. They have different baselines and do not add up. */
function Savings({ cost }: { cost: Study["cost"] }) {
  return (
    <>
      {cost.spared > 0 && (
        <p class="quiet">
          <strong class="saved">{share(cost.saved_by_sharing)} saved by sharing</strong>: {count(cost.spared)} of the {count(cost.taken)} steps that the trials took,
          each counted alone{cost.repeated + cost.struck > 0 && ", minus the repeated steps"}
        </p>
      )}
      {cost.stopped_early > 0 && (
        <p class="quiet">
          <strong class="saved">{share(cost.saved_by_stopping)} saved by early stopping</strong>: {count(cost.stopped_early)} of{" "}
          {count(cost.taken + cost.stopped_early)} steps of training every trial to its end
        </p>
      )}
    </>
  );
}
