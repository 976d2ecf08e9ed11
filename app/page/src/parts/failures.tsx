/** Failed trials, those with equal errors together: how many, why, and what only they have in common. */
import { plural } from "../format.ts";
import { studyLink } from "../route.ts";
import type { Study } from "../types.ts";
import { Panel } from "./panel.tsx";

/** So many trials of a group are named. */
const NAMED = 12;

export function FailedTrials({ study }: { study: Study }) {
  const groups = study.failures ?? [];
  if (groups.length === 0) return null;
  const all = studyLink(study.study, ["trials"], { q: "state:failed" });
  return (
    <Panel title={`${plural(study.counts.failed ?? 0, "trial")} failed`} class="wide" aside={<a href={all}>all of them</a>}>
      <ul class="failures">
        {groups.map((group) => (
          <li key={group.text}>
            <b>{group.text}</b>
            <p class="quiet">
              {group.place && <>{group.place}; </>}tried {plural(group.tries, "time")} in all: {group.trials.length === 1 ? "trial" : "trials"}{" "}
              {group.trials.slice(0, NAMED).map((trial, index) => (
                <span key={trial}>
                  {index > 0 && ", "}
                  <a href={studyLink(study.study, ["trials", String(trial)])}>{trial}</a>
                </span>
              ))}
              {group.trials.length > NAMED && ` and ${group.trials.length - NAMED} more`}
            </p>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
