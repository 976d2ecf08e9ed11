/** The comparison of selected trials: differences, shared steps, learning curves and schedules. */
import { useMemo } from "preact/hooks";
import { studyPath, useAnswer } from "../data.ts";
import { cellText, number } from "../format.ts";
import { trialPath, meanAndRepeatTrees } from "../layout/rung_tree.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Plot } from "../parts/plot.tsx";
import { selectedTrials, studyLink } from "../route.ts";
import { columnTitle, useTable, type Table } from "../table.ts";
import { palette, seriesColour } from "../theme.ts";
import type { Tree } from "../types.ts";
import { curveLine } from "./curves.tsx";
import { ScheduleSketches } from "./answer.tsx";
import type { ViewProps } from "./props.ts";

const FACTS = ["state", "value", "last.deviation", "last.repeats", "last.repeats_from", "best.value", "best.step", "last.step", "rung", "rank", "trained", "standing"];

export function Compare({ study, at }: ViewProps) {
  const table = useTable(study.study, at);
  const tree = useAnswer<Tree>(studyPath(study.study, "/tree", at));
  const trials = selectedTrials.value;
  const lines = useMemo(
    () => (tree.data ? trials.filter((trial) => trial < tree.data!.trials.node.length).map((trial, index) => curveLine(meanAndRepeatTrees(tree.data!).means, trial, { colour: seriesColour(index), width: 2 })) : []),
    [tree.data, trials, palette.value],
  );
  if (trials.length < 2) {
    return (
      <p class="quiet">
        Select two or more trials in the <a href={studyLink(study.study, ["trials"])}>table</a>.
      </p>
    );
  }
  return (
    <Loaded answer={table}>
      {(data) => {
        const existing = trials.filter((trial) => trial < data.count);
        return (
          <>
            <Panel title={`${existing.length} trials`} aside={<span>{tree.data && sharedText(tree.data, existing)}</span>}>
              <Facts study={study.study} table={data} trials={existing} />
            </Panel>
            <Panel title="Curves">
              <Plot label={`${study.metric} of the selected trials`} height={280} lines={lines} xLabel="step" yLabel={study.metric} file={`${study.study}-compared`} />
            </Panel>
            <Panel title="Schedules">
              <div class="columns">
                {existing.map((trial) => (
                  <section key={trial}>
                    <h3>trial {trial}</h3>
                    <ScheduleSketches study={study.study} trial={trial} marks={[]} />
                  </section>
                ))}
              </div>
            </Panel>
          </>
        );
      }}
    </Loaded>
  );
}

/** One column per trial, with its state and the hyper-parameters that differ. A fact that none of them has is left out. */
function Facts({ study, table, trials }: { study: string; table: Table; trials: number[] }) {
  const known = FACTS.filter((name) => trials.some((trial) => ![null, undefined, ""].includes(table.get(trial, name) as string | null | undefined)));
  const varied = table.hyperparameters.filter((name) => new Set(trials.map((trial) => table.get(trial, name))).size > 1);
  return (
    <div class="scroll">
      <table class="list narrow">
        <thead>
          <tr>
            <td />
            {trials.map((trial, index) => (
              <th key={trial}>
                <span style={{ color: seriesColour(index) }} aria-hidden="true">
                  ━
                </span>{" "}
                <a href={studyLink(study, ["trials", String(trial)])}>{trial}</a>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {[...known, ...varied].map((name) => (
            <tr key={name}>
              <th scope="row">{columnTitle(name)}</th>
              {trials.map((trial) => (
                <td key={trial}>{cellText(table.get(trial, name))}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The step up to which all trials share their training. */
function sharedSteps(tree: Tree, trials: number[]): number {
  const paths = trials.map((trial) => trialPath(tree, trial).reverse());
  const first = paths[0] ?? [];
  let same = 0;
  while (same < first.length && paths.every((path) => path[same] === first[same])) same += 1;
  if (same === 0) return 0;
  const ends = paths.map((path, index) => (path[same] === undefined ? tree.trials.steps[trials[index]!]! : tree.nodes.start[path[same]!]!));
  return Math.min(...ends);
}

function sharedText(tree: Tree, trials: number[]): string {
  const steps = sharedSteps(tree, trials);
  if (steps) return `all share steps 0 to ${number(steps)}`;
  return trials.length > 2 ? "no step is shared by all of them" : "they share no steps";
}
