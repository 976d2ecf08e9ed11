/** The rung tree as a drawing: what is under the pointer, or was reached by the arrow keys, is told beside it. */
import { useCallback, useMemo, useState } from "preact/hooks";
import { number } from "../format.ts";
import { rungTree, wayOf, withMeans, type End, type Segment } from "../layout/rung_tree.ts";
import { robust, robustByLog, spansOrders } from "../layout/scales.ts";
import { palette, type Palette } from "../theme.ts";
import type { Tree } from "../types.ts";
import { Canvas, Tip, type Size } from "./canvas.tsx";
import { drawAxes, drawEnds, drawLines, drawLinks, drawRepeats, nearest, nodeColours, scalesOf, type Best, type Near } from "./rung_tree_painting.ts";

const STEPS: Record<string, number> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

interface Props {
  tree: Tree;
  mode: string;
  metric: string;
  height: number;
  rungs: { step: number; name: string }[];
  best: Best | null;
  chosen: number[];
  isLog: boolean;
  isWhole: boolean;
  /** Whether the metric is by its logarithm; nothing: where its values span orders of magnitude. */
  isLogY: boolean | null;
  /** A value for each trial by which it is coloured; nothing for the plain drawing. */
  values: unknown[] | null;
  states: string[];
  tell: (end: End) => preact.ComponentChildren;
  pick: (trial: number) => void;
}

interface Place extends Near {
  x: number;
  y: number;
}

export function RungTreeCanvas(props: Props) {
  const { height, isLog, isWhole, chosen, best, rungs, values } = props;
  const { means: tree, repeats } = useMemo(() => withMeans(props.tree), [props.tree]);
  const drawing = useMemo(() => rungTree(tree), [tree]);
  const single = useMemo(() => (repeats ? rungTree(repeats) : null), [repeats]);
  const measured = useMemo(() => (single ?? drawing).points.map(([, value]) => value), [drawing, single]);
  const isLogY = props.isLogY !== false && measured.every((value) => value > 0) && (props.isLogY || spansOrders(measured));
  const domain = useMemo(() => (isLogY ? robustByLog : robust)(measured, isWhole, props.mode), [measured, isWhole, isLogY, props.mode]);
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
  const marked = useMemo(() => (place?.end ? [...chosen, place.end.trial] : chosen), [chosen, place?.end]);
  const lit = useMemo(() => wayOf(tree, marked), [tree, marked]);
  const won = useMemo(() => wayOf(tree, best ? [best.trial] : []), [tree, best]);

  const draw = useCallback(
    (context: CanvasRenderingContext2D, size: Size, ink: Palette) => {
      setWidth(size.width);
      const [x, y] = scalesOf(frame, size);
      drawAxes(context, size, ink, { x, y, metric: props.metric, rungs, ...frame });
      if (single) drawRepeats(context, single.segments, { x, y, ink });
      drawLines(context, drawing.segments, { x, y, ink, colours, lit, won, all: tree.trials.node.length, thickest: Math.max(...tree.nodes.trials, 1) });
      drawLinks(context, drawing.links, { x, y, ink });
      drawEnds(context, drawing.ends, { x, y, ink, marked, colours, states: props.states, most: drawing.ends.length, best });
      context.globalAlpha = 1;
    },
    [drawing, single, frame, colours, marked, lit, won, rungs, props.metric, props.states, best],
  );

  const scales = scalesOf(frame, { width, height });
  const find = (x: number, y: number) => nearest({ ends: [...drawing.ends, ...ranked.filter((end) => end.trial === best?.trial)], segments: drawing.segments }, scales, x, y);
  /** To the end that is so many ranks from the one that is told. */
  const step = (by: number) => {
    const index = place?.end ? ranked.findIndex((each) => each.trial === place.end!.trial) : -1;
    const end = ranked[Math.max(0, Math.min(ranked.length - 1, index + by))];
    const [x, y] = scales;
    if (end) setPlace({ x: x(end.step), y: y(end.value), end });
  };
  return (
    <div class="with-tip">
      <Canvas
        height={height}
        draw={draw}
        label={`Rung tree: ${props.metric} by step, ${tree.trials.node.length} trials, shared beginnings as thick lines. Arrow keys go from the best trial on.`}
        onPoint={(x, y) => {
          const near = find(x, y);
          setPlace(near && { x, y, ...near });
        }}
        onLeave={() => setPlace(null)}
        onPick={(x, y) => {
          const end = find(x, y)?.end;
          if (end) props.pick(end.trial);
        }}
        onKeyDown={(event) => {
          if (event.key in STEPS) step(STEPS[event.key]!);
          else if (event.key === "Enter" && place?.end) props.pick(place.end.trial);
          else return;
          event.preventDefault();
        }}
      />
      {place && (
        <Tip x={place.x} y={place.y} width={width}>
          {place.end ? props.tell(place.end) : <Shared tree={tree} segment={place.segment!} />}
        </Tip>
      )}
    </div>
  );
}

function Shared({ tree, segment }: { tree: Tree; segment: Segment }) {
  const { node, trials } = segment;
  const [start, end] = [tree.nodes.start[node]!, Math.min(tree.nodes.trained[node]!, segment.x1)];
  const forms = Object.entries(tree.forms[node] ?? {});
  return (
    <>
      <b>{trials === 1 ? "one trial alone" : `${trials} trials share this`}</b>
      {trials > 1 && end > start && <p>{number((trials - 1) * (end - start))} steps saved between steps {start} and {end}</p>}
      {forms.map(([name, form]) => (
        <p key={name}>
          {name} {form}
        </p>
      ))}
    </>
  );
}

