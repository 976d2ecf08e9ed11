/** The rung tree as a drawing: what is under the pointer, or was reached by the arrow keys, is told beside it. */
import { useCallback, useMemo, useState } from "preact/hooks";
import { MARKS, number } from "../format.ts";
import { commonValues, isOn, rungTree, wayOf, type End, type Segment } from "../layout/rungtree.ts";
import { linear, robust, steps as stepScale, stepTicks, ticks, type Scale } from "../layout/scales.ts";
import { palette, scale as colourScale, series, type Palette } from "../theme.ts";
import type { Tree } from "../types.ts";
import { Canvas, Tip, type Size } from "./canvas.tsx";

const [LEFT, RIGHT, TOP, BOTTOM] = [52, 16, 20, 26];
const REACH_PIXELS = 14;

interface Props {
  tree: Tree;
  mode: string;
  metric: string;
  height: number;
  rungs: { step: number; name: string }[];
  best: number | null;
  chosen: number[];
  isLog: boolean;
  isWhole: boolean;
  /** A value for each trial by which it is coloured; nothing for the plain drawing. */
  values: unknown[] | null;
  states: string[];
  tell: (end: End) => preact.ComponentChildren;
  pick: (trial: number) => void;
}

interface Place {
  x: number;
  y: number;
  width: number;
  end?: End;
  segment?: Segment;
}

export function RungTreeCanvas(props: Props) {
  const { tree, height, isLog, isWhole, chosen, best, rungs, values } = props;
  const drawing = useMemo(() => rungTree(tree), [tree]);
  const domain = useMemo(() => robust(drawing.points.map(([, value]) => value), isWhole), [drawing, isWhole]);
  const most = useMemo(() => Math.max(1, ...tree.nodes.end), [tree]);
  const colours = useMemo(() => (values ? nodeColours(tree, values) : null), [tree, values, palette.value]);
  const [place, setPlace] = useState<Place | null>(null);
  const [width, setWidth] = useState(600);
  const scales = useCallback(
    (size: Size): [Scale, Scale] => [
      stepScale(most, [LEFT, size.width - RIGHT], isLog),
      clamped(linear(domain, [size.height - BOTTOM, TOP]), size.height),
    ],
    [most, isLog, domain],
  );
  const ranked = useMemo(() => {
    const sign = props.mode === "min" ? 1 : -1;
    return [...drawing.ends].sort((a, b) => sign * (a.value - b.value));
  }, [drawing, props.mode]);
  const marked = useMemo(() => (place?.end ? [...chosen, place.end.trial] : chosen), [chosen, place?.end]);
  const lit = useMemo(() => wayOf(tree, marked), [tree, marked]);
  const won = useMemo(() => wayOf(tree, best === null ? [] : [best]), [tree, best]);

  const draw = useCallback(
    (context: CanvasRenderingContext2D, size: Size, ink: Palette) => {
      setWidth(size.width);
      const [x, y] = scales(size);
      drawAxes(context, size, ink, { x, y, domain, most, isLog, rungs });
      const wide = Math.log2(1 + Math.max(...tree.nodes.trials, 1));
      for (const segment of order(drawing.segments, won)) {
        const isWon = isOn(won, segment);
        context.strokeStyle = colours?.[segment.node] ?? (isWon ? ink.accent : ink.soft);
        context.globalAlpha = lit.size && !isOn(lit, segment) ? 0.14 : isWon || colours ? 0.95 : 0.6;
        if (segment.isGuess) context.globalAlpha *= 0.35;
        context.lineWidth = 1 + (Math.log2(segment.trials) / wide) * 11;
        context.lineCap = "round";
        context.beginPath();
        context.moveTo(x(segment.x0), y(segment.y0));
        context.lineTo(x(segment.x1), y(segment.y1));
        context.stroke();
      }
      drawEnds(context, drawing.ends, { x, y, ink, marked, colours, states: props.states, most: drawing.ends.length, best });
      context.globalAlpha = 1;
    },
    [drawing, scales, colours, marked, lit, won, rungs, domain, most, isLog, props.states, best],
  );

  const size = { width, height };
  const find = (px: number, py: number): Place | null => nearest(drawing, scales(size), px, py, width);
  const step = (by: number) => {
    const index = place?.end ? ranked.findIndex((each) => each.trial === place.end!.trial) : -1;
    const end = ranked[Math.max(0, Math.min(ranked.length - 1, index + by))];
    const [x, y] = scales(size);
    if (end) setPlace({ x: x(end.step), y: y(end.value), width, end });
  };
  return (
    <div class="with-tip">
      <Canvas
        height={height}
        draw={draw}
        label={`Rung tree: ${props.metric} by step, ${tree.trials.node.length} trials, shared beginnings as thick lines. Arrow keys go from the best trial on.`}
        onPoint={(px, py) => setPlace(find(px, py))}
        onLeave={() => setPlace(null)}
        onPick={(px, py) => {
          const found = find(px, py);
          if (found?.end) props.pick(found.end.trial);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowRight" || event.key === "ArrowDown") step(1);
          else if (event.key === "ArrowLeft" || event.key === "ArrowUp") step(-1);
          else if (event.key === "Enter" && place?.end) props.pick(place.end.trial);
          else return;
          event.preventDefault();
        }}
      />
      {place && (
        <Tip x={place.x} y={place.y} width={place.width}>
          {place.end ? props.tell(place.end) : <Shared tree={tree} segment={place.segment!} />}
        </Tip>
      )}
    </div>
  );
}

/** The way of the best trial is drawn last, above the others. */
function order(segments: Segment[], won: Map<number, number>): Segment[] {
  return [...segments.filter((each) => !isOn(won, each)), ...segments.filter((each) => isOn(won, each))];
}

function Shared({ tree, segment }: { tree: Tree; segment: Segment }) {
  const { node, trials } = segment;
  const [start, end] = [tree.nodes.start[node]!, Math.min(tree.nodes.trained[node]!, segment.x1)];
  const forms = Object.entries(tree.forms[node] ?? {});
  return (
    <>
      <b>{trials === 1 ? "one trial alone" : `${trials} trials share this`}</b>
      {trials > 1 && end > start && <p>which saved {number((trials - 1) * (end - start))} steps from {start} to {end}</p>}
      {forms.map(([name, form]) => (
        <p key={name}>
          {name} {form}
        </p>
      ))}
    </>
  );
}

function clamped(scale: Scale, height: number): Scale {
  return (value) => Math.max(TOP - 4, Math.min(height - BOTTOM - 2, scale(value)));
}

/** The colour of what all trials through a node have in common. */
function nodeColours(tree: Tree, values: unknown[]): (string | undefined)[] {
  const common = commonValues(tree, values);
  const numbers = values.filter((value): value is number => typeof value === "number");
  const isNumeric = numbers.length > 0 && new Set(numbers).size > 6;
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const isLog = low > 0 && high / low > 50;
  const place = isLog ? Math.log : (value: number) => value;
  const kinds = [...new Set(values.map(String))].sort();
  return common.map((value) => {
    if (value === undefined || value === null) return undefined;
    if (isNumeric && typeof value === "number") return colourScale((place(value) - place(low)) / (place(high) - place(low) || 1));
    return series(kinds.indexOf(String(value)));
  });
}

interface Axes {
  x: Scale;
  y: Scale;
  domain: [number, number];
  most: number;
  isLog: boolean;
  rungs: { step: number; name: string }[];
}

function drawAxes(context: CanvasRenderingContext2D, size: Size, ink: Palette, axes: Axes): void {
  const { x, y } = axes;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const value of ticks(axes.domain, 5)) {
    context.strokeStyle = ink.line;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(LEFT, y(value));
    context.lineTo(size.width - RIGHT, y(value));
    context.stroke();
    context.fillStyle = ink.soft;
    context.fillText(number(value), LEFT - 8, y(value));
  }
  context.textAlign = "center";
  const taken = axes.rungs.map((rung) => x(rung.step));
  for (const step of stepTicks(axes.most, axes.isLog)) {
    if (taken.every((place) => Math.abs(place - x(step)) > 30)) {
      context.fillStyle = ink.faint;
      context.fillText(String(step), x(step), size.height - BOTTOM + 14);
    }
  }
  context.setLineDash([2, 3]);
  let free = 0;
  for (const rung of axes.rungs) {
    context.strokeStyle = ink.faint;
    context.beginPath();
    context.moveTo(x(rung.step), TOP);
    context.lineTo(x(rung.step), size.height - BOTTOM);
    context.stroke();
    context.fillStyle = ink.soft;
    context.fillText(String(rung.step), x(rung.step), size.height - BOTTOM + 14);
    const half = context.measureText(rung.name).width / 2;
    const middle = Math.min(x(rung.step), size.width - half - 2);
    if (middle - half > free) {
      context.fillText(rung.name, middle, TOP - 10);
      free = middle + half + 8;
    }
  }
  context.setLineDash([]);
}

interface Marks {
  x: Scale;
  y: Scale;
  ink: Palette;
  marked: number[];
  colours: (string | undefined)[] | null;
  states: string[];
  most: number;
  best: number | null;
}

function drawEnds(context: CanvasRenderingContext2D, ends: End[], marks: Marks): void {
  const { x, y, ink, marked, colours, states, best } = marks;
  context.textAlign = "center";
  context.font = `${marks.most > 500 ? 7 : 11}px system-ui, sans-serif`;
  for (const end of [...ends].sort((a, b) => Number(a.trial === best) - Number(b.trial === best))) {
    const state = states[end.trial] ?? end.state;
    const isBest = end.trial === best;
    context.globalAlpha = marked.length && !marked.includes(end.trial) && !isBest ? 0.2 : 1;
    context.fillStyle = isBest ? ink.accent : state === "failed" ? ink.bad : (colours?.[end.node] ?? ink.ink);
    if (isBest) drawBest(context, x(end.step), y(end.value), end, ink);
    else context.fillText(MARKS[state] ?? "●", x(end.step), y(end.value) + 1);
  }
}

/** The best trial by name, on paper of its own, so that it can be read above whatever ends there, below the names of rungs. */
function drawBest(context: CanvasRenderingContext2D, x: number, y: number, end: End, ink: Palette): void {
  const text = `trial ${end.trial}: ${number(end.value)}`;
  context.font = "600 12px system-ui, sans-serif";
  context.textAlign = "right";
  context.lineWidth = 4;
  context.strokeStyle = ink.paper;
  const line = Math.max(TOP + 6, y - 12);
  context.strokeText(text, x - 12, line);
  context.fillText(text, x - 12, line);
  context.textAlign = "center";
  context.font = "bold 18px system-ui, sans-serif";
  context.strokeText("★", x, y + 1);
  context.fillText("★", x, y + 1);
}

/** What is under the pointer: the end of a trial before a line. */
function nearest(drawing: { ends: End[]; segments: Segment[] }, [x, y]: [Scale, Scale], px: number, py: number, width: number): Place | null {
  let [best, found]: [number, Place | null] = [REACH_PIXELS, null];
  for (const end of drawing.ends) {
    const away = Math.hypot(x(end.step) - px, y(end.value) - py);
    if (away < best) [best, found] = [away, { x: px, y: py, width, end }];
  }
  if (found) return found;
  for (const segment of drawing.segments) {
    const away = distance(px, py, x(segment.x0), y(segment.y0), x(segment.x1), y(segment.y1));
    if (away < best) [best, found] = [away, { x: px, y: py, width, segment }];
  }
  return found;
}

function distance(px: number, py: number, ax: number, ay: number, bx: number, by: number): number {
  const length = (bx - ax) ** 2 + (by - ay) ** 2;
  const share = length ? Math.max(0, Math.min(1, ((px - ax) * (bx - ax) + (py - ay) * (by - ay)) / length)) : 0;
  return Math.hypot(px - ax - share * (bx - ax), py - ay - share * (by - ay));
}
