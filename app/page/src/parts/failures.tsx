/** Failed trials, grouped by error, with the hyper-parameters that only the failed ones have in common. */
import { plural } from "../format.ts";
import { studyLink } from "../route.ts";
import type { Study } from "../types.ts";
import { Panel } from "./panel.tsx";

const MAX_NAMED_TRIALS = 12;

export function FailedTrials({ study }: { study: Study }) {
  const groups = study.failures ?? [];
  if (groups.length === 0) return null;
  const all = studyLink(study.study, ["trials"], { q: "state:failed" });
  return (
    <Panel title={`${plural(study.counts.failed ?? 0, "trial")} failed`} class="wide" aside={<a href={all}>show all</a>}>
      <ul class="failures">
        {groups.map((group) => (
          <li key={group.text}>
            <b>{group.text}</b>
            <p class="quiet">
              {group.place && <>{group.place}; </>}{plural(group.tries, "attempt")} in all: {group.trials.length === 1 ? "trial" : "trials"}{" "}
              {group.trials.slice(0, MAX_NAMED_TRIALS).map((trial, index) => (
                <span key={trial}>
                  {index > 0 && ", "}
                  <a href={studyLink(study.study, ["trials", String(trial)])}>{trial}</a>
                </span>
              ))}
              {group.trials.length > MAX_NAMED_TRIALS && ` and ${group.trials.length - MAX_NAMED_TRIALS} more`}
            </p>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
