/** The search plan as an icicle: shared steps, running stages, checkpoints, and the savings by sharing. */
import { useCallback, useMemo, useState } from "preact/hooks";
import { canWrite, isReport, studyPath, useAnswer } from "../data.ts";
import { count, plural } from "../format.ts";
import { icicle, averageMarks, savedSteps, type Bar } from "../layout/icicle.ts";
import { branchPoint, nodePath, repeatNodes, meanAndRepeatTrees, type BranchPoint } from "../layout/rung_tree.ts";
import { linearScale, ticks } from "../layout/scales.ts";
import { Canvas, Tip, type Size } from "../parts/canvas.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { fitHeight } from "../parts/fit_height.ts";
import { BranchHint } from "../parts/rung_tree_canvas.tsx";
import { selectedTrials, route, setQuery } from "../route.ts";
import type { Palette } from "../theme.ts";
import type { Study, Tree } from "../types.ts";
import { BranchForm } from "./branch.tsx";
import type { ViewProps } from "./props.ts";

const [TOP, LEFT, RIGHT] = [22, 8, 8];

export function PlanTree({ study, at }: ViewProps) {
  const answer = useAnswer<Tree>(studyPath(study.study, "/tree", at));
  return (
    <Loaded answer={answer}>{(tree) => (tree.count ? <IcicleChart study={study} tree={tree} canBranch={canWrite.value && !isReport && at === null} /> : <p class="quiet">The study has no trials yet.</p>)}</Loaded>
  );
}

interface ChartProps {
  study: Study;
  tree: Tree;
  canBranch: boolean;
}

function IcicleChart({ study, tree: whole, canBranch }: ChartProps) {
  const repeats = useMemo(() => meanAndRepeatTrees(whole).repeats, [whole]);
  const tree = repeats ?? whole;
  const named = route.value.query["node"];
  const unit = repeats ? "repeat" : "trial";
  const root = named ? tree.nodes.id.indexOf(named) : -1;
  const layout = useMemo(() => icicle(tree, root), [tree, root]);
  const height = Math.max(280, Math.min(fitHeight(720, 330), 30 + layout.height * 22));
  const marked = useMemo(() => new Set(selectedTrials.value.flatMap((trial) => repeatNodes(whole, trial).flatMap((node) => nodePath(whole, node)))), [whole, selectedTrials.value]);
  const [place, setPlace] = useState<{ x: number; y: number; width: number; bar: Bar } | null>(null);
  const [size, setSize] = useState<Size>({ width: 1, height });
  const [branched, setBranched] = useState<BranchPoint | null>(null);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, canvasSize: Size, ink: Palette) => {
      setSize(canvasSize);
      paint(context, canvasSize, ink, { whole, tree, unit }, layout, marked);
    },
    [whole, tree, unit, layout, marked],
  );
  const find = (px: number, py: number) => {
    const [step, row] = [stepAtPixel(px, layout, size), ((py - TOP) / (size.height - TOP)) * layout.height];
    return layout.bars.find((bar) => bar.x0 <= step && step < bar.x1 && bar.y0 <= row && row < bar.y1);
  };
  /** Of the trials through a bar, a selected one comes first, then the best of the study, and then the first. */
  const pointOn = (bar: Bar, px: number): BranchPoint | null => {
    const order = [...selectedTrials.value, ...(study.best ? [study.best.trial] : []), ...whole.trials.node.keys()];
    const step = Math.min(Math.max(Math.round(stepAtPixel(px, layout, size)), bar.x0), bar.x1);
    return canBranch ? branchPoint(whole, order, bar.node, step) : null;
  };
  const shared = tree.nodes.id.filter((_, node) => tree.nodes.trials[node]! > 1).length;
  const aside = root >= 0 && <button onClick={() => setQuery({ node: "" })}>the whole tree</button>;
  return (
    <Panel title={`${plural(tree.count, "node")}, ${count(shared)} of them shared`} aside={aside}>
      <div class="with-tip">
        <Canvas
          height={height}
          draw={draw}
          label={`The tree by steps: ${tree.count} nodes; the more ${unit}s share a bar, the higher it is. Click a node to see its subtree.`}
          onPoint={(x, y) => {
            const bar = find(x, y);
            setPlace(bar ? { x, y, width: size.width, bar } : null);
          }}
          onLeave={() => setPlace(null)}
          onPick={(x, y, event) => {
            const bar = find(x, y);
            if (event.shiftKey) setBranched(bar ? pointOn(bar, x) : null);
            else if (bar) setQuery({ node: bar.node === root ? "" : tree.nodes.id[bar.node]! }, { replace: false });
          }}
          onKeyDown={(event) => event.key === "Escape" && setQuery({ node: "" })}
          data={{ name: `${study.study}-stages`, rows: () => nodeRows(tree) }}
        />
        {place && (
          <Tip x={place.x} y={place.y} width={place.width}>
            <BarTip tree={tree} bar={place.bar} unit={unit} />
            <Hint tree={whole} point={pointOn(place.bar, place.x)} />
          </Tip>
        )}
        {branched && <BranchForm study={study} {...branched} steps={whole.trials.steps[branched.trial]!} close={() => setBranched(null)} />}
      </div>
      <p class="quiet key">
        From left to right the steps · <span class="swatch done" /> trained, one {unit} · <span class="swatch shared" /> trained, shared · <span class="swatch running" /> running ·{" "}
        <span class="swatch open" /> pending · <b>|</b> checkpoint. Click a bar to see its subtree{canBranch && ", and with Shift to branch off there"}; press Escape to see the whole tree.
      </p>
    </Panel>
  );
}

function Hint({ tree, point }: { tree: Tree; point: BranchPoint | null }) {
  return point && <BranchHint tree={tree} point={point} action="Shift and click" />;
}

function nodeRows({ nodes }: Tree): (string | number)[][] {
  const rows = nodes.id.map((id, node) => [id, nodes.parent[node]! < 0 ? "" : nodes.id[nodes.parent[node]!]!, nodes.start[node]!, nodes.end[node]!, nodes.trained[node]!, nodes.trials[node]!]);
  return [["node", "parent", "from step", "to step", "trained to", "trials"], ...rows];
}

interface CountedTree {
  /** As sent by the server. */
  whole: Tree;
  /** With the number of units through each node. */
  tree: Tree;
  /** "trial" or "repeat". */
  unit: string;
}

type Layout = ReturnType<typeof icicle>;

function stepAtPixel(px: number, layout: Layout, size: Size): number {
  return layout.from + ((px - LEFT) / (size.width - LEFT - RIGHT)) * (layout.to - layout.from);
}

function paint(context: CanvasRenderingContext2D, size: Size, ink: Palette, { whole, tree, unit }: CountedTree, layout: Layout, marked: Set<number>): void {
  const x = linearScale([layout.from, layout.to], [LEFT, size.width - RIGHT]);
  const y = linearScale([0, layout.height], [TOP, size.height]);
  context.textBaseline = "middle";
  context.textAlign = "center";
  context.fillStyle = ink.soft;
  for (const step of ticks([layout.from, layout.to], size.width / 90).filter(Number.isInteger)) context.fillText(count(step), Math.min(size.width - 20, Math.max(12, x(step))), 9);
  for (const bar of layout.bars) {
    const trained = tree.nodes.trained[bar.node]!;
    const gap = y(bar.y1) - y(bar.y0) > 4 ? 1 : 0;
    const rect = (from: number, to: number) => context.fillRect(x(from), y(bar.y0), Math.max(0.5, x(to) - x(from) - gap), y(bar.y1) - y(bar.y0) - gap);
    context.globalAlpha = marked.size && !marked.has(bar.node) ? 0.25 : 1;
    context.fillStyle = ink.line;
    rect(bar.x0, bar.x1);
    context.fillStyle = bar.trials > 1 ? ink.accent : ink.faint;
    if (trained > bar.x0) rect(bar.x0, Math.min(bar.x1, trained));
    context.fillStyle = ink.warm;
    for (const [from, to] of tree.nodes.running[bar.node]!) if (to! > bar.x0 && from! < bar.x1) rect(Math.max(from!, bar.x0), Math.min(to!, bar.x1));
    context.fillStyle = ink.ink;
    for (const step of tree.nodes.checkpoints[bar.node]!) if (step > bar.x0 && step <= bar.x1) context.fillRect(x(step) - 3, y(bar.y0), 2, Math.min(4, y(bar.y1) - y(bar.y0) - gap));
    drawBarText(context, ink, tree, unit, bar, x(bar.x0), x(bar.x1) - x(bar.x0), y(bar.y0), y(bar.y1));
  }
  context.globalAlpha = 1;
  if (layout.from === 0) for (const mean of averageMarks(whole, tree)) drawAverage(context, ink, mean.trials, x(mean.step), y(mean.y0), y(mean.y1));
}

/** An average has no steps: a diamond where it begins, and to its left the averaged trials. */
function drawAverage(context: CanvasRenderingContext2D, ink: Palette, of: number[], x: number, top: number, bottom: number): void {
  const middle = (top + bottom) / 2;
  context.fillStyle = ink.warm;
  context.textAlign = "right";
  context.fillText("◆", x + 4, middle);
  context.fillStyle = ink.ink;
  context.fillText(fitText(context, [`mean of ${of.length > 1 ? "trials" : "states of trial"} ${of.join(", ")}`], x - 16), x - 10, middle);
}

function drawBarText(context: CanvasRenderingContext2D, ink: Palette, tree: Tree, unit: string, bar: Bar, left: number, width: number, top: number, bottom: number): void {
  const { trials, isFirst } = bar;
  const forms = Object.entries(isFirst ? (tree.forms[bar.node] ?? {}) : {}).map(([name, form]) => `${name} ${form}`);
  const all = [trials > 1 ? plural(trials, unit) : "", ...forms].filter(Boolean).join(" · ");
  const text = fitText(context, [all, ...(trials > 1 ? [plural(trials, unit), String(trials)] : [])], width - 9);
  if (bottom - top < 13 || !text) return;
  context.textAlign = "left";
  context.fillStyle = trials > 1 && tree.nodes.trained[bar.node]! > bar.x0 ? ink.paper : ink.ink;
  context.fillText(text, left + 5, (top + bottom) / 2);
}

/** The first text that fits, or else the shortened last one; "" if only a few letters would fit. */
function fitText(context: CanvasRenderingContext2D, texts: string[], width: number): string {
  const whole = texts.find((text) => context.measureText(text).width <= width);
  if (whole !== undefined) return whole;
  const last = texts.at(-1)!;
  const letters = Math.floor((last.length * width) / context.measureText(last).width) - 2;
  return letters > 3 ? `${last.slice(0, letters)}…` : "";
}

function BarTip({ tree, bar, unit }: { tree: Tree; bar: Bar; unit: string }) {
  const { nodes } = tree;
  const { node } = bar;
  const saved = savedSteps(tree, bar);
  return (
    <>
      <b>
        steps {bar.x0} to {bar.x1}
      </b>{" "}
      {plural(bar.trials, unit)}
      {saved > 0 && <p>shared: {plural(saved, "step")} saved</p>}
      <p>
        {nodes.trained[node]! > nodes.start[node]! ? `trained to step ${nodes.trained[node]}` : "not trained yet"}
        {nodes.running[node]!.map(([from, to]) => `; training steps ${from} to ${to}`)}
      </p>
      {nodes.checkpoints[node]!.length > 0 && <p>checkpoints: {nodes.checkpoints[node]!.slice(0, 8).join(", ")}</p>}
      {Object.entries(tree.forms[node] ?? {}).map(([name, form]) => (
        <p key={name}>
          {name} {form}
        </p>
      ))}
    </>
  );
}
