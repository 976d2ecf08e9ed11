/** The selected trials of the address, with a link to compare them. */
import { useState } from "preact/hooks";
import { canWrite, isReport } from "../data.ts";
import { Panel } from "../parts/panel.tsx";
import { State } from "../parts/states.tsx";
import { selectedTrials, setQuery, studyLink, toggleTrial } from "../route.ts";
import { useTable } from "../table.ts";
import { number } from "../format.ts";
import { BranchForm } from "./branch.tsx";
import type { ViewProps } from "./props.ts";

export function SelectedTrials({ study, at }: ViewProps) {
  const { data } = useTable(study.study, at);
  const [branched, setBranched] = useState<number | null>(null);
  const canBranch = canWrite.value && !isReport && at === null;
  const trained = (trial: number) => Number(data?.get(trial, "trained") ?? 0);
  if (selectedTrials.value.length === 0 || !data) return null;
  const aside = (
    <>
      {selectedTrials.value.length > 1 && <a href={studyLink(study.study, ["compare"])}>compare them</a>}
      <button onClick={() => setQuery({ trials: "" })}>clear</button>
    </>
  );
  return (
    <Panel title="Selected trials" aside={aside}>
      <ul class="chosen">
        {selectedTrials.value
          .filter((trial) => trial < data.count)
          .map((trial) => (
            <li key={trial}>
              <a href={studyLink(study.study, ["trials", String(trial)])}>trial {trial}</a> <State state={String(data.get(trial, "state"))} />{" "}
              <b>{number(data.get(trial, "value") as number | null)}</b> <span>{String(data.get(trial, "standing"))}</span>
              {canBranch && trained(trial) > 0 && (
                <button class="small" onClick={() => setBranched(trial)} aria-label={`Branch off trial ${trial}`}>
                  Branch
                </button>
              )}
              <button class="small" onClick={() => toggleTrial(trial)} aria-label={`Remove trial ${trial} from the selection`}>
                ×
              </button>
            </li>
          ))}
      </ul>
      {branched !== null && (
        <BranchForm study={study} trial={branched} at={Math.max(1, Math.floor(trained(branched) / 2))} steps={Number(data.get(branched, "steps"))} close={() => setBranched(null)} />
      )}
    </Panel>
  );
}
