/** What sharing saved, as one number with a bar; and what early stopping saved. */
import { ageText, count, share } from "../format.ts";
import { Panel } from "../parts/panel.tsx";
import type { Study } from "../types.ts";

export function Savings({ study }: { study: Study }) {
  const { cost, story, finished_at } = study;
  const seconds = story.seconds_by_sharing;
  if (cost.taken === 0) {
    return (
      <Panel title="Saved by sharing">
        <p class="quiet">No step has been trained yet.</p>
      </Panel>
    );
  }
  return (
    <Panel title="Saved by sharing" class="savings">
      <p class="value">
        <strong class={cost.spared > 0 ? "saved" : ""}>{share(cost.saved_by_sharing)}</strong>{" "}
        {seconds > 0 && <span>about {ageText(1000 * seconds)} of slot time{finished_at === null && ", so far"}</span>}
      </p>
      <Bar part={cost.spared} all={cost.taken} label={`${count(cost.spared)} of ${count(cost.taken)} steps saved by sharing`} />
      <p class="quiet">
        {cost.spared > 0
          ? `${count(cost.spared)} of ${count(cost.taken)} steps are shared: trained once for several trials.`
          : study.exactness.isolated
            ? "The trainer is not exact, so each trial is trained alone."
            : `No two trials share any of the ${count(cost.taken)} steps.`}
      </p>
      {cost.stopped_early > 0 && (
        <>
          <p class="second">
            <strong class="saved">{share(cost.saved_by_stopping)}</strong> saved by early stopping
          </p>
          <Bar part={cost.stopped_early} all={cost.taken + cost.stopped_early} label={`${count(cost.stopped_early)} of ${count(cost.taken + cost.stopped_early)} steps saved by early stopping`} />
        </>
      )}
    </Panel>
  );
}

/** The saved part in colour, at the end of all steps. */
function Bar({ part, all, label }: { part: number; all: number; label: string }) {
  const saved = all ? Math.max(0, (100 * part) / all) : 0;
  return (
    <svg class="share" viewBox="0 0 100 4" preserveAspectRatio="none" width="100%" height="10" role="img" aria-label={label}>
      <title>{label}</title>
      <rect width={100 - saved} height="4" />
      <rect class="saved" x={100 - saved} width={saved} height="4" />
    </svg>
  );
}
