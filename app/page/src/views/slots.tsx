/** Slots over time: a lane for each, with the stages that it trained, what was measured and kept, and what was lost. */
import { useCallback, useMemo, useState } from "preact/hooks";
import { about, useAnswer } from "../data.ts";
import { download } from "../download.ts";
import { duration, percent, time } from "../format.ts";
import { timeTicks } from "../layout/scales.ts";
import { axis, busyShare, chromeTrace, lanes, place, type Collapse } from "../layout/timeline.ts";
import { Canvas, Tip, type Size } from "../parts/canvas.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { roomFor } from "../parts/room.ts";
import { route, setQuery, studyLink } from "../route.ts";
import { isDark, scale as colourScale, type Palette } from "../theme.ts";
import type { Study, Timeline, Tree } from "../types.ts";
import type { ViewProps } from "./props.ts";

const [NAME, TOP] = [92, 22];

/** How high a lane is: fewer have more room. */
function laneOf(slots: number): number {
  return Math.max(30, Math.min(72, Math.round(roomFor(420, 480) / Math.max(1, slots))));
}

type Range = [number, number];

export function SlotsView({ study, at }: ViewProps) {
  const answer = useAnswer<Timeline>(about(study.study, "/timeline", at));
  const tree = useAnswer<Tree>(about(study.study, "/tree", at));
  const isCollapsed = route.value.query["idle"] !== "shown";
  const aside = (
    <>
      <label>
        <input type="checkbox" checked={isCollapsed} onChange={(event) => setQuery({ idle: event.currentTarget.checked ? "" : "shown" })} /> leave out idle times
      </label>
      {answer.data && (
        <button onClick={() => download(`${study.study}.trace.json`, chromeTrace(answer.data!, study.study), "application/json")}>Chrome trace</button>
      )}
    </>
  );
  return (
    <Panel title="Slots over time" aside={aside}>
      <Loaded answer={answer}>
        {(timeline) => (timeline.count ? <Lanes study={study} timeline={timeline} tree={tree.data} isCollapsed={isCollapsed} /> : <p class="quiet">No slot has trained for it yet.</p>)}
      </Loaded>
    </Panel>
  );
}

interface LanesProps {
  study: Study;
  timeline: Timeline;
  tree: Tree | null;
  isCollapsed: boolean;
}

function Lanes({ study, timeline, tree, isCollapsed }: LanesProps) {
  const names = useMemo(() => lanes(timeline), [timeline]);
  const shown = useMemo(() => axis(timeline, isCollapsed), [timeline, isCollapsed]);
  const trials = useMemo(() => new Map((tree?.nodes.id ?? []).map((id, node) => [id, tree!.nodes.trials[node]!])), [tree]);
  const view = useRange(shown.length);
  const [from, to] = view.range;
  const [over, setOver] = useState<{ x: number; y: number; span: number } | null>(null);
  const [size, setSize] = useState<Size>({ width: 600, height: 100 });
  const lane = laneOf(names.length);
  const scale = (width: number) => (at: number) => NAME + ((place(shown, at) - from) / (to - from)) * (width - NAME - 4);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, drawn: Size, ink: Palette) => {
      setSize(drawn);
      paint(context, drawn, ink, { timeline, names, shown, trials, from, to, begin: study.submitted_at, x: scale(drawn.width) });
    },
    [timeline, names, shown, trials, from, to, isDark.value],
  );
  const wheel = useCallback(
    (event: WheelEvent) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      view.zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, (event.offsetX - NAME) / (size.width - NAME)));
    },
    [view.zoom, size.width],
  );
  const find = (px: number, py: number): number => (px < NAME ? -1 : spanAt(timeline, names[Math.floor((py - TOP) / lane)], px, scale(size.width)));
  return (
    <>
      <div class="with-tip">
        <Canvas
          height={TOP + names.length * lane + 4}
          draw={draw}
          label={`${names.length} slots over time, ${timeline.count} stages. Plus and minus zoom, arrows move, 0 shows all.`}
          onPoint={(x, y) => {
            const span = find(x, y);
            setOver(span >= 0 ? { x, y, span } : null);
          }}
          onLeave={() => setOver(null)}
          onPick={(x, y) => {
            const span = find(x, y);
            if (span >= 0) location.hash = studyLink(study.study, ["events"], { event: String(timeline.spans.begun[span]) });
          }}
          onWheel={wheel}
          onKeyDown={(event) => view.key(event.key) && event.preventDefault()}
        />
        {over && (
          <Tip x={over.x} y={over.y} width={size.width}>
            <Told timeline={timeline} span={over.span} trials={trials} />
          </Tip>
        )}
      </div>
      <Buttons view={view} />
    </>
  );
}

/** The part of the shown axis that is looked at, and how to look at another. */
function useRange(length: number) {
  const [given, setRange] = useState<Range | null>(null);
  const range = given ?? [0, length];
  const [from, to] = range;
  const zoom = useCallback(
    (factor: number, share = 0.5) => {
      const span = Math.min(length, (to - from) * factor);
      const start = Math.min(Math.max(0, from + (to - from - span) * share), length - span);
      setRange(span >= length ? null : [start, start + span]);
    },
    [from, to, length],
  );
  const move = (share: number) => {
    const start = Math.min(Math.max(0, from + (to - from) * share), length - (to - from));
    setRange([start, start + (to - from)]);
  };
  const all = () => setRange(null);
  /** What a key does; false if that is nothing. */
  const key = (name: string): boolean => {
    const keys: Record<string, () => void> = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), "0": all, ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) };
    keys[name]?.();
    return name in keys;
  };
  return { range, isAll: given === null, zoom, move, all, key };
}

function Buttons({ view }: { view: ReturnType<typeof useRange> }) {
  return (
    <p class="buttons">
      <button onClick={() => view.zoom(0.6)}>closer</button>
      <button onClick={() => view.zoom(1.6)}>wider</button>
      <button onClick={() => view.move(-0.3)} aria-label="earlier">
        ‹
      </button>
      <button onClick={() => view.move(0.3)} aria-label="later">
        ›
      </button>
      <button onClick={view.all} disabled={view.isAll}>
        all
      </button>
      <span class="quiet key">
        The darker, the more trials share the stage · hatched: another study's · dashed: a proof, trained again only to compare · red cross: failed or lost · tick above: measured, below: kept. Click a stage for
        its event; Ctrl and wheel zoom.
      </span>
    </p>
  );
}

/** The number of the stage that the slot trained at a place, -1 for none; a short one is two pixels wide. */
function spanAt({ spans, at }: Timeline, slot: string | undefined, px: number, x: (at: number) => number): number {
  return spans.slot.findLastIndex((each, index) => {
    const left = x(spans.begun_at[index]!);
    return each === slot && left - 1 <= px && px <= Math.max(x(spans.ended_at[index] ?? at), left + 2);
  });
}

interface Drawn {
  timeline: Timeline;
  names: string[];
  shown: Collapse;
  trials: Map<string, number>;
  from: number;
  to: number;
  begin: number;
  x: (at: number) => number;
}

function paint(context: CanvasRenderingContext2D, size: Size, ink: Palette, drawn: Drawn): void {
  context.textBaseline = "middle";
  drawNames(context, size, ink, drawn);
  context.save();
  context.beginPath();
  context.rect(NAME, 0, size.width - NAME, size.height);
  context.clip();
  drawSpans(context, size, ink, drawn);
  drawMarks(context, ink, drawn);
  drawTimes(context, size, ink, drawn);
  context.restore();
}

/** Each slot with how much of the time it trained, before the lane that is its. */
function drawNames(context: CanvasRenderingContext2D, size: Size, ink: Palette, { timeline, names }: Drawn): void {
  const lane = laneOf(names.length);
  names.forEach((name, row) => {
    const y = TOP + row * lane;
    context.fillStyle = ink.line;
    context.globalAlpha = 0.45;
    context.fillRect(NAME, y + 4, size.width - NAME - 4, lane - 10);
    context.globalAlpha = 1;
    context.fillStyle = ink.ink;
    context.fillText(name, 0, y + 12, 56);
    context.fillStyle = ink.soft;
    context.fillText(percent(busyShare(timeline, name)), 0, y + 25, NAME - 10);
  });
}

function drawSpans(context: CanvasRenderingContext2D, size: Size, ink: Palette, { timeline, names, trials, x }: Drawn): void {
  const { spans, at } = timeline;
  const lane = laneOf(names.length);
  const most = Math.log2(1 + Math.max(1, ...trials.values()));
  spans.slot.forEach((slot, index) => {
    const [left, right] = [x(spans.begun_at[index]!), x(spans.ended_at[index] ?? at)];
    if (right < NAME || left > size.width) return;
    const [y, width] = [TOP + names.indexOf(slot) * lane + 4, Math.max(1, right - left - 0.5)];
    const share = Math.log2(1 + (trials.get(spans.node[index]!) ?? 1)) / most;
    const isProof = spans.proof[index] !== null;
    context.fillStyle = spans.own[index] ? colourScale(0.75 - 0.75 * share) : ink.faint;
    if (isProof) frame(context, ink, left, y, width, lane - 10);
    else context.fillRect(left, y, width, lane - 10);
    if (!spans.own[index] && !isProof) hatch(context, ink, left, y, width, lane);
    if (["done", "running", "stopped"].includes(spans.outcome[index]!)) return;
    context.fillStyle = ink.bad;
    context.fillRect(right - 2, y - 2, 3, lane - 6);
    context.fillText("✕", right - 4, y - 4);
  });
}

/** What was measured above its lane, what was kept below. */
function drawMarks(context: CanvasRenderingContext2D, ink: Palette, { timeline, names, x }: Drawn): void {
  const { spans, marks } = timeline;
  const lane = laneOf(names.length);
  context.fillStyle = ink.ink;
  marks.at.forEach((at, index) => {
    const y = TOP + names.indexOf(spans.slot[marks.span[index]!]!) * lane;
    context.fillRect(x(at), marks.kind[index] === "evaluated" ? y + 1 : y + lane - 7, 1, 4);
  });
}

/** A stage that was trained again only to compare: a dashed frame that is empty. */
function frame(context: CanvasRenderingContext2D, ink: Palette, left: number, top: number, width: number, height: number): void {
  context.save();
  context.strokeStyle = ink.soft;
  context.lineWidth = 1.5;
  context.setLineDash([4, 3]);
  context.strokeRect(left + 1, top + 1, Math.max(1, width - 2), height - 2);
  context.restore();
}

function hatch(context: CanvasRenderingContext2D, ink: Palette, left: number, top: number, width: number, lane: number): void {
  context.save();
  context.beginPath();
  context.rect(left, top, width, lane - 10);
  context.clip();
  context.strokeStyle = ink.paper;
  context.lineWidth = 2;
  for (let x = left - lane; x < left + width; x += 7) {
    context.beginPath();
    context.moveTo(x, top + lane);
    context.lineTo(x + lane, top);
    context.stroke();
  }
  context.restore();
}

/** Round times since the submission, when each piece begins and, where idle time was left out, a broken line. */
function drawTimes(context: CanvasRenderingContext2D, size: Size, ink: Palette, { begin, x, from, to, shown }: Drawn): void {
  let free = NAME;
  const spacing = (to - from) / (size.width / 110);
  shown.pieces.forEach((piece, index) => {
    const range: [number, number] = [piece.from - begin, piece.to - begin];
    const round = timeTicks(range, (range[1] - range[0]) / spacing);
    context.fillStyle = ink.soft;
    for (const since of index ? [range[0], ...round] : round) {
      const left = x(begin + since);
      if (left >= free && left < size.width - 40) {
        context.fillText(duration(since), left, 9);
        context.fillRect(left, 15, 1, 4);
        free = left + 60;
      }
    }
    if (index === 0) return;
    context.fillStyle = ink.faint;
    for (let y = TOP; y < size.height; y += 6) context.fillRect(x(piece.from) - 2, y, 1, 3);
  });
}

function Told({ timeline, span, trials }: { timeline: Timeline; span: number; trials: Map<string, number> }) {
  const { spans } = timeline;
  const took = (spans.ended_at[span] ?? timeline.at) - spans.begun_at[span]!;
  const shared = trials.get(spans.node[span]!);
  return (
    <>
      <b>{spans.slot[span]}</b> steps {spans.start[span]} to {spans.end[span]}, {spans.outcome[span]}
      <p>
        {time(spans.begun_at[span])}, took {duration(took)}
      </p>
      {spans.proof[span] && <p>a proof ({spans.proof[span]}): trained again, only to compare</p>}
      <p hidden={spans.proof[span] !== null}>{spans.own[span] ? (shared && shared > 1 ? `for ${shared} trials at once` : "for one trial") : "charged to another study"}</p>
      <p class="quiet">
        event {spans.begun[span]}
        {spans.ended[span] ? ` to ${spans.ended[span]}` : ""}
      </p>
    </>
  );
}
