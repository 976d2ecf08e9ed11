/** What a study would have cost, what it did not have to pay, and what it paid: in steps. */
import { count, plural, share } from "../format.ts";
import type { Study } from "../types.ts";

export interface Bar {
  name: string;
  title: string;
  steps: number;
  from: number;
  kind: "total" | "saved" | "plain" | "again" | "run";
}

/** Why steps are repeated where each trial is trained alone. */
const ALONE = "the trainer is not exact, so a longer trial begins anew";

/** The bars, from what training alone would take down to what was run; those of no steps are left out. */
export function bars(cost: Study["cost"], isIsolated = false): Bar[] {
  const parts: [string, string, number, Bar["kind"]][] = [
    ["stopped early", "steps that the tuner decided not to train", -cost.stopped_early, "saved"],
    ["unfinished", "steps that are neither trained nor saved", -cost.unfinished, "plain"],
    ["shared", "steps that several trials need, trained once", -cost.shared, "saved"],
    ["known", "steps that another study had trained", -cost.known, "saved"],
    ["repeated", `trained again, because ${isIsolated ? ALONE : "a later trial branches where no state was kept"}`, cost.repeated, "again"],
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
  return [...rows, { name: "run", title: "steps that slots trained for it", steps: cost.run, from: 0, kind: "run" }];
}

export function Waterfall({ study }: { study: Study }) {
  const most = Math.max(1, study.cost.alone, study.cost.run);
  const isIsolated = study.exactness.isolated;
  return (
    <>
      <table class="waterfall">
        <caption class="hidden">The cost of the study with and without savings</caption>
        <tbody>
          {bars(study.cost, isIsolated).map((bar) => (
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
          {plural(study.exactness.proof_steps, "step")} trained again, only to compare: in the slot time, and not among those run.
        </p>
      )}
      {study.cost.repeated > 0 && (
        <p class="quiet">
          {plural(study.cost.repeated, "step")} repeated: {isIsolated ? ALONE : "a later trial branches where no state was kept, and was trained from the state before it"}.
        </p>
      )}
      {study.cost.retried > 0 && (
        <p class="quiet">{plural(study.cost.retried, "step")} retried after errors: the trainer raised before their state was kept.</p>
      )}
      {study.cost.lost > 0 && <p class="quiet">{plural(study.cost.lost, "step")} trained again because a worker was lost.</p>}
    </>
  );
}

/** What sharing saved and what early stopping did: each has its own baseline, so they are two numbers. */
function Savings({ cost }: { cost: Study["cost"] }) {
  return (
    <>
      {cost.spared > 0 && (
        <p class="quiet">
          <strong class="saved">{share(cost.saved_by_sharing)} saved by sharing</strong>: {count(cost.spared)} of the {count(cost.taken)} steps that the trials took,
          each counted alone{cost.repeated + cost.struck > 0 && ", less the ones that were run again for it"}
        </p>
      )}
      {cost.stopped_early > 0 && (
        <p class="quiet">
          <strong class="saved">{share(cost.saved_by_stopping)} saved by early stopping</strong>: {count(cost.stopped_early)} of{" "}
          {count(cost.taken + cost.stopped_early)} steps that it takes to train every trial to its end
        </p>
      )}
    </>
  );
}
