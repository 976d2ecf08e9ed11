/** The interactive rung tree: a tooltip describes the line or the end under the pointer, or reached by arrow keys. */
import { useCallback, useMemo, useState } from "preact/hooks";
import { number, plural } from "../format.ts";
import { branchPoint, rungTree, trialCurve, pathEnds, meanAndRepeatTrees, type BranchPoint, type End, type Segment } from "../layout/rung_tree.ts";
import { countHidden, hiddenText, isLogAxis, robustRange, robustLogRange } from "../layout/scales.ts";
import { palette, type Palette } from "../theme.ts";
import type { Tree } from "../types.ts";
import { Canvas, Tip, type Size } from "./canvas.tsx";
import { clipToFrame, drawAxes, drawEnds, drawHidden, drawLines, drawLinks, drawRepeats, findNearest, nodeColours, stepAtPixel, treeScales, type Best, type Near } from "./rung_tree_painting.ts";

const STEPS: Record<string, number> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

interface Props {
  tree: Tree;
  mode: string;
  metric: string;
  height: number;
  rungs: { step: number; name: string }[];
  best: Best | null;
  selected: number[];
  isLog: boolean;
  isWhole: boolean;
  /** The metric axis: `log`, `linear`, or by its values. */
  scale: string | undefined;
  /** Values by trial that determine the colours; null for the plain drawing. */
  values: unknown[] | null;
  states: string[];
  describeEnd: (end: End) => preact.ComponentChildren;
  toggle: (trial: number) => void;
  /** Called with a step of a line that was clicked; null where nothing may be changed. */
  branch: ((point: BranchPoint) => void) | null;
  /** The name of saved files. */
  file: string;
}

interface Place extends Near {
  x: number;
  y: number;
}

/** The tree of a study without rungs, such as a grid, shows its trials all the same. */
export function treeTitle(rungs: unknown[]): string {
  return rungs.length ? "Rung tree" : "Trial tree";
}

export function RungTreeCanvas(props: Props) {
  const { height, isLog, isWhole, selected, best, rungs, values } = props;
  const { means: tree, repeats } = useMemo(() => meanAndRepeatTrees(props.tree), [props.tree]);
  const drawing = useMemo(() => rungTree(tree), [tree]);
  const single = useMemo(() => (repeats ? rungTree(repeats) : null), [repeats]);
  const measured = useMemo(() => (single ?? drawing).points.map(([, value]) => value), [drawing, single]);
  const isLogY = isLogAxis(measured, props.scale);
  const domain = useMemo(() => (isLogY ? robustLogRange : robustRange)(measured, isWhole, props.mode), [measured, isWhole, isLogY, props.mode]);
  const hidden = useMemo(() => countHidden(measured, domain), [measured, domain]);
  const most = useMemo(() => Math.max(1, ...tree.nodes.end), [tree]);
  const frame = useMemo(() => ({ domain, most, isLog, isLogY }), [domain, most, isLog, isLogY]);
  const colours = useMemo(() => (values ? nodeColours(tree, values) : null), [tree, values, palette.value]);
  const [place, setPlace] = useState<Place | null>(null);
  const [width, setWidth] = useState(600);
  const ranked = useMemo(() => {
    const sign = props.mode === "min" ? 1 : -1;
    const atResult = (end: End): End => (end.trial === best?.trial ? { ...end, step: best.step, value: best.value } : end);
    return drawing.ends.map(atResult).sort((a, b) => sign * (a.value - b.value));
  }, [drawing, best, props.mode]);
  const marked = useMemo(() => (place?.end ? [...selected, place.end.trial] : selected), [selected, place?.end]);
  const markedPath = useMemo(() => pathEnds(tree, marked), [tree, marked]);
  const bestPath = useMemo(() => pathEnds(tree, best ? [best.trial] : []), [tree, best]);

  const draw = useCallback(
    (context: CanvasRenderingContext2D, size: Size, ink: Palette) => {
      setWidth(size.width);
      const [x, y] = treeScales(frame, size);
      drawAxes(context, size, ink, { x, y, metric: props.metric, rungs, ...frame });
      context.save();
      clipToFrame(context, size);
      if (single) drawRepeats(context, single.segments, { x, y, ink });
      drawLines(context, drawing.segments, { x, y, ink, colours, markedPath, bestPath, all: tree.trials.node.length, thickest: Math.max(...tree.nodes.trials, 1) });
      drawLinks(context, drawing.links, { x, y, ink });
      drawEnds(context, drawing.ends, { x, y, ink, marked, colours, states: props.states, most: drawing.ends.length, best });
      context.restore();
      drawHidden(context, size, ink, hidden);
    },
    [drawing, single, frame, hidden, colours, marked, markedPath, bestPath, rungs, props.metric, props.states, best],
  );

  const outside = [hiddenText(hidden.above, "above"), hiddenText(hidden.below, "below")].filter(Boolean).map((text) => ` ${text.slice(2)} the frame.`).join("");
  const scales = treeScales(frame, { width, height });
  const find = (x: number, y: number) => findNearest({ ends: [...drawing.ends, ...ranked.filter((end) => end.trial === best?.trial)], segments: drawing.segments }, scales, x, y);
  /** Of the trials on a line, a selected one comes first, and then the best. */
  const pointOn = (segment: Segment, x: number): BranchPoint | null => {
    const step = Math.min(Math.max(stepAtPixel(frame, width, x), Math.ceil(segment.x0)), Math.floor(segment.x1));
    return props.branch && branchPoint(tree, [...selected, ...ranked.map((end) => end.trial)], segment.node, step);
  };
  /** Move the tooltip by some ranks. */
  const moveFocus = (by: number) => {
    const index = place?.end ? ranked.findIndex((each) => each.trial === place.end!.trial) : -1;
    const end = ranked[Math.max(0, Math.min(ranked.length - 1, index + by))];
    const [x, y] = scales;
    if (end) setPlace({ x: x(end.step), y: Math.max(0, Math.min(height, y(end.value))), end });
  };
  return (
    <div class="with-tip">
      <Canvas
        height={height}
        draw={draw}
        data={{ name: props.file, rows: () => curveRows(props.tree, props.metric) }}
        label={`${treeTitle(rungs)}: ${props.metric} by step, ${tree.trials.node.length} trials, shared beginnings as thick lines. Arrow keys go from the best trial on.${outside}`}
        onPoint={(x, y) => {
          const near = find(x, y);
          setPlace(near && { x, y, ...near });
        }}
        onLeave={() => setPlace(null)}
        onPick={(x, y) => {
          const near = find(x, y);
          if (near?.end) props.toggle(near.end.trial);
          const point = near?.segment && pointOn(near.segment, x);
          if (point) props.branch!(point);
        }}
        onKeyDown={(event) => {
          if (event.key in STEPS) moveFocus(STEPS[event.key]!);
          else if (event.key === "Enter" && place?.end) props.toggle(place.end.trial);
          else return;
          event.preventDefault();
        }}
      />
      {place && (
        <Tip x={place.x} y={place.y} width={width}>
          {place.end ? props.describeEnd(place.end) : <SegmentTip tree={tree} segment={place.segment!} point={pointOn(place.segment!, place.x)} />}
        </Tip>
      )}
    </div>
  );
}

/** What a click does, with its price: the steps after the branch. */
export function BranchHint({ tree, point: { trial, at }, action }: { tree: Tree; point: BranchPoint; action: string }) {
  return (
    <p class="quiet">
      {action} to branch off trial {trial} after step {at}: {plural(Math.max(0, tree.trials.steps[trial]! - at), "new step")}
    </p>
  );
}

/** The learning curve of each trial: shared measurements are a row for each of the trials. */
function curveRows(tree: Tree, metric: string): (string | number)[][] {
  const rows = tree.trials.node.flatMap((_, trial) => {
    const { x, y } = trialCurve(tree, trial);
    return x.map((step, index) => [trial, step, y[index]!]);
  });
  return [["trial", "step", metric], ...rows];
}

function SegmentTip({ tree, segment, point }: { tree: Tree; segment: Segment; point: BranchPoint | null }) {
  const { node, trials } = segment;
  const [start, end] = [tree.nodes.start[node]!, Math.min(tree.nodes.trained[node]!, segment.x1)];
  const forms = Object.entries(tree.forms[node] ?? {});
  return (
    <>
      <b>{trials === 1 ? "one trial" : `${trials} trials share this line`}</b>
      {trials > 1 && end > start && <p>{number((trials - 1) * (end - start))} steps saved between steps {start} and {end}</p>}
      {forms.map(([name, form]) => (
        <p key={name}>
          {name} {form}
        </p>
      ))}
      {point && <BranchHint tree={tree} point={point} action="Click" />}
    </>
  );
}

