/** The selected trials of the address, with a link to compare them. */
import { Panel } from "../parts/panel.tsx";
import { State } from "../parts/states.tsx";
import { selectedTrials, setQuery, studyLink, toggleTrial } from "../route.ts";
import { useTable } from "../table.ts";
import { number } from "../format.ts";
import type { ViewProps } from "./props.ts";

export function SelectedTrials({ study, at }: ViewProps) {
  const { data } = useTable(study.study, at);
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
              <button class="small" onClick={() => toggleTrial(trial)} aria-label={`Remove trial ${trial} from the selection`}>
                ×
              </button>
            </li>
          ))}
      </ul>
    </Panel>
  );
}
