/** Slots over time: a lane for each slot with its stages, evaluations, checkpoints and failures. */
import type { ComponentChildren } from "preact";
import { useCallback, useMemo, useState } from "preact/hooks";
import { studyPath, useAnswer } from "../data.ts";
import { download } from "../download.ts";
import { duration, timeText } from "../format.ts";
import { timeAxis, chromeTrace, laneNames, axisPosition, stageSlots } from "../layout/timeline.ts";
import { Canvas, Tip, type Size } from "../parts/canvas.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { laneHeight, NAME, paint, sharingColour, TOP } from "../parts/slots_painting.ts";
import { route, setQuery, studyLink } from "../route.ts";
import { isDark, type Palette } from "../theme.ts";
import type { Study, Timeline, Tree } from "../types.ts";
import type { ViewProps } from "./props.ts";

type Range = [number, number];

export function SlotsView({ study, at }: ViewProps) {
  const answer = useAnswer<Timeline>(studyPath(study.study, "/timeline", at));
  const tree = useAnswer<Tree>(studyPath(study.study, "/tree", at));
  const isCollapsed = route.value.query["idle"] !== "shown";
  const aside = (
    <>
      <label>
        <input type="checkbox" checked={isCollapsed} onChange={(event) => setQuery({ idle: event.currentTarget.checked ? "" : "shown" })} /> hide idle times
      </label>
      {answer.data && (
        <button onClick={() => download(`${study.study}.trace.json`, chromeTrace(answer.data!, study.study), "application/json")}>Chrome trace</button>
      )}
    </>
  );
  return (
    <Panel title="Slots over time" aside={aside}>
      <Loaded answer={answer}>
        {(timeline) => (timeline.count ? <Lanes study={study} timeline={timeline} tree={tree.data} isCollapsed={isCollapsed} /> : <p class="quiet">No slot has trained for this study yet.</p>)}
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
  const names = useMemo(() => laneNames(timeline), [timeline]);
  const axis = useMemo(() => timeAxis(timeline, isCollapsed), [timeline, isCollapsed]);
  const trials = useMemo(() => new Map((tree?.nodes.id ?? []).map((id, node) => [id, tree!.nodes.trials[node]!])), [tree]);
  const view = useZoom(axis.length);
  const [from, to] = view.range;
  const [over, setOver] = useState<{ x: number; y: number; span: number } | null>(null);
  const [size, setSize] = useState<Size>({ width: 600, height: 100 });
  const lane = laneHeight(names.length);
  const scale = (width: number) => (at: number) => NAME + ((axisPosition(axis, at) - from) / (to - from)) * (width - NAME - 4);
  const draw = useCallback(
    (context: CanvasRenderingContext2D, canvasSize: Size, ink: Palette) => {
      setSize(canvasSize);
      paint(context, canvasSize, ink, { timeline, names, axis, trials, from, to, begin: study.submitted_at, x: scale(canvasSize.width) });
    },
    [timeline, names, axis, trials, from, to, isDark.value],
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
          data={{ name: `${study.study}-timeline`, rows: () => stageRows(timeline) }}
          onKeyDown={(event) => view.key(event.key) && event.preventDefault()}
        />
        {over && (
          <Tip x={over.x} y={over.y} width={size.width}>
            <StageTip timeline={timeline} span={over.span} trials={trials} />
          </Tip>
        )}
      </div>
      <ZoomButtons view={view}>
        <SharingLegend most={Math.max(1, ...timeline.spans.node.map((node) => trials.get(node) ?? 1))} key={String(isDark.value)} />
      </ZoomButtons>
    </>
  );
}

function stageRows({ spans }: Timeline): (string | number | boolean | null)[][] {
  const rows = spans.slot.map((slot, index) => [slot, spans.start[index]!, spans.end[index]!, spans.begun_at[index]!, spans.ended_at[index] ?? null, spans.outcome[index]!, spans.own[index]!, spans.proof[index] ?? null]);
  return [["slot", "from step", "to step", "begun at", "ended at", "outcome", "own", "verification"], ...rows];
}

/** The visible range of the time axis, with zooming and panning. */
function useZoom(length: number) {
  const [zoomed, setRange] = useState<Range | null>(null);
  const range = zoomed ?? [0, length];
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
    if (zoomed === null) return;
    const start = Math.min(Math.max(0, from + (to - from) * share), length - (to - from));
    setRange([start, start + (to - from)]);
  };
  const all = () => setRange(null);
  /** Returns whether the key was handled. */
  const key = (name: string): boolean => {
    const keys: Record<string, () => void> = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), "0": all, ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) };
    keys[name]?.();
    return name in keys;
  };
  return { range, isAll: zoomed === null, zoom, move, all, key };
}

function ZoomButtons({ view, children }: { view: ReturnType<typeof useZoom>; children: ComponentChildren }) {
  return (
    <p class="buttons">
      <button onClick={() => view.zoom(0.6)}>zoom in</button>
      <button onClick={() => view.zoom(1.6)} disabled={view.isAll}>
        zoom out
      </button>
      <button onClick={() => view.move(-0.3)} disabled={view.isAll} aria-label="earlier">
        ‹
      </button>
      <button onClick={() => view.move(0.3)} disabled={view.isAll} aria-label="later">
        ›
      </button>
      <button onClick={view.all} disabled={view.isAll}>
        all
      </button>
      <span class="quiet key">
        Times since submission, h:min:s · {children} · hatched: another study's · dashed: verification · red cross: failed or lost · tick above: evaluation, below: checkpoint. Click a
        stage for its event; zoom with Ctrl and the wheel.
      </span>
    </p>
  );
}

/** The index of the stage of a slot at a pixel, or -1. A stage is at least two pixels wide. */
function spanAt(timeline: Timeline, slot: string | undefined, px: number, x: (at: number) => number): number {
  const { spans, at } = timeline;
  return spans.slot.findLastIndex((_, index) => {
    const left = x(spans.begun_at[index]!);
    return stageSlots(timeline, index).includes(slot ?? "") && left - 1 <= px && px <= Math.max(x(spans.ended_at[index] ?? at), left + 2);
  });
}

/** The colours by number of sharing trials, up to the most shared stage. */
function SharingLegend({ most }: { most: number }) {
  const steps = [1, 2, 4, 8, 16, 32].filter((each) => each < 2 * most);
  return (
    <span class="key">
      shared by{" "}
      {steps.map((each, index) => (
        <span key={each}>
          <svg width="12" height="12" aria-hidden="true">
            <rect width="12" height="12" fill={sharingColour(each)} />
          </svg>{" "}
          {each === 32 ? "32 or more" : each}
          {index + 1 < steps.length ? " · " : most === 1 ? " trial" : " trials"}
        </span>
      ))}
    </span>
  );
}

function StageTip({ timeline, span, trials }: { timeline: Timeline; span: number; trials: Map<string, number> }) {
  const { spans } = timeline;
  const took = (spans.ended_at[span] ?? timeline.at) - spans.begun_at[span]!;
  const shared = trials.get(spans.node[span]!);
  return (
    <>
      <b>{stageSlots(timeline, span).join(", ")}</b> steps {spans.start[span]} to {spans.end[span]}, {spans.outcome[span]}
      <p>
        {timeText(spans.begun_at[span])}, took {duration(took)}
      </p>
      {spans.proof[span] && <p>verification ({spans.proof[span]}): trained again to compare</p>}
      <p hidden={spans.proof[span] !== null}>{spans.own[span] ? (shared && shared > 1 ? `for ${shared} trials at once` : "for one trial") : "charged to another study"}</p>
      <p class="quiet">
        event {spans.begun[span]}
        {spans.ended[span] ? ` to ${spans.ended[span]}` : ""}
      </p>
    </>
  );
}
