/** Some trials beside each other: what differs, what they share, and their curves. */
import { useMemo } from "preact/hooks";
import { about, useAnswer } from "../data.ts";
import { cell, number } from "../format.ts";
import { pathOf, withMeans } from "../layout/rung_tree.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Plot } from "../parts/plot.tsx";
import { chosen, studyLink } from "../route.ts";
import { titleOf, useTable, type Table } from "../table.ts";
import { palette, series } from "../theme.ts";
import type { Tree } from "../types.ts";
import { line } from "./curves.tsx";
import { Pictures } from "./overview.tsx";
import type { ViewProps } from "./props.ts";

const FACTS = ["state", "value", "last.deviation", "last.repeats", "best.value", "best.step", "last.step", "rung", "rank", "trained", "standing"];

export function Compare({ study, at }: ViewProps) {
  const table = useTable(study.study, at);
  const tree = useAnswer<Tree>(about(study.study, "/tree", at));
  const trials = chosen.value;
  const lines = useMemo(
    () => (tree.data ? trials.filter((trial) => trial < tree.data!.trials.node.length).map((trial, index) => ({ ...line(withMeans(tree.data!).means, trial, index, null), width: 2 })) : []),
    [tree.data, trials, palette.value],
  );
  if (trials.length < 2) {
    return (
      <p class="quiet">
        Choose two trials or more in the <a href={studyLink(study.study, ["trials"])}>table</a>.
      </p>
    );
  }
  return (
    <Loaded answer={table}>
      {(data) => {
        const there = trials.filter((trial) => trial < data.count);
        return (
          <>
            <Panel title={`${there.length} trials`} aside={<span>{tree.data && sharedText(tree.data, there)}</span>}>
              <Facts study={study.study} table={data} trials={there} />
            </Panel>
            <Panel title="Curves">
              <Plot label={`${study.metric} of the chosen trials`} height={280} lines={lines} xLabel="step" />
            </Panel>
            <Panel title="Schedules">
              <div class="columns">
                {there.map((trial) => (
                  <section key={trial}>
                    <h3>trial {trial}</h3>
                    <Pictures study={study.study} trial={trial} marks={[]} />
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

/** A column for each trial: how it stands, and the hyper-parameters in which they differ. */
function Facts({ study, table, trials }: { study: string; table: Table; trials: number[] }) {
  const varied = table.hyperparameters.filter((name) => new Set(trials.map((trial) => table.get(trial, name))).size > 1);
  return (
    <div class="scroll">
      <table class="list narrow">
        <thead>
          <tr>
            <th />
            {trials.map((trial, index) => (
              <th key={trial}>
                <span style={{ color: series(index) }} aria-hidden="true">
                  ━
                </span>{" "}
                <a href={studyLink(study, ["trials", String(trial)])}>{trial}</a>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {[...FACTS, ...varied].map((name) => (
            <tr key={name}>
              <th scope="row">{titleOf(name)}</th>
              {trials.map((trial) => (
                <td key={trial}>{cell(table.get(trial, name))}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Up to which step all of them are one training. */
function sharedSteps(tree: Tree, trials: number[]): number {
  const paths = trials.map((trial) => pathOf(tree, trial).reverse());
  const first = paths[0] ?? [];
  let same = 0;
  while (same < first.length && paths.every((path) => path[same] === first[same])) same += 1;
  if (same === 0) return 0;
  const ends = paths.map((path, index) => (path[same] === undefined ? tree.trials.steps[trials[index]!]! : tree.nodes.start[path[same]!]!));
  return Math.min(...ends);
}

function sharedText(tree: Tree, trials: number[]): string {
  const steps = sharedSteps(tree, trials);
  return steps ? `all share steps 0 to ${number(steps)}` : "they share no steps";
}
