/** Slots over time: lanes, a time axis without idle times, and the export as a trace. */
import type { Timeline } from "../types.ts";

export interface TimeAxis {
  /** The shown intervals of time in order; `offset` is the start of each on the axis, in seconds. */
  pieces: { from: number; to: number; offset: number }[];
  length: number;
}

/** Width of a hidden idle time, as a share of the busy time. */
const GAP_SHARE = 0.02;

/** The slots that train a stage: the leader, and the slots lent to it. */
export function stageSlots({ spans }: Timeline, index: number): string[] {
  return [spans.slot[index]!, ...spans.members[index]!];
}

/** The slot names in numeric order: gpu2 before gpu10. */
export function laneNames({ spans }: Timeline): string[] {
  return [...new Set([...spans.slot, ...spans.members.flat()])].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
}

/** If `isCollapsed`, each long idle time becomes a small gap. */
export function timeAxis({ spans, at }: Timeline, isCollapsed: boolean): TimeAxis {
  const times = spans.begun_at.map((from, index): [number, number] => [from, spans.ended_at[index] ?? at]);
  times.sort((a, b) => a[0] - b[0]);
  const busy: [number, number][] = [];
  for (const [from, to] of times) {
    const last = busy.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else busy.push([from, to]);
  }
  const total = busy.reduce((sum, [from, to]) => sum + to - from, 0);
  const gap = Math.max(total * GAP_SHARE, 1e-3);
  const pieces: TimeAxis["pieces"] = [];
  let offset = 0;
  for (const [from, to] of busy) {
    const last = pieces.at(-1);
    const idle = last ? from - last.to : 0;
    if (last && (!isCollapsed || idle <= gap)) last.to = to;
    else pieces.push({ from, to, offset: last ? offset + gap : 0 });
    const now = pieces.at(-1)!;
    offset = now.offset + now.to - now.from;
  }
  return { pieces, length: Math.max(offset, 1e-3) };
}

export function axisPosition({ pieces }: TimeAxis, time: number): number {
  let piece = pieces[0];
  for (const each of pieces) if (each.from <= time) piece = each;
  if (!piece) return 0;
  return piece.offset + Math.min(Math.max(0, time - piece.from), piece.to - piece.from);
}

/** The share of the time from the first stage to the last in which a slot trained. */
export function busyShare(timeline: Timeline, slot: string): number {
  const { spans, at } = timeline;
  const all = spans.begun_at.map((from, index) => [from, spans.ended_at[index] ?? at] as const);
  if (all.length === 0) return 0;
  const begin = all.reduce((least, [from]) => Math.min(least, from), Infinity);
  const end = all.reduce((most, [, to]) => Math.max(most, to), 0);
  const own = all.filter((_, index) => stageSlots(timeline, index).includes(slot)).reduce((sum, [from, to]) => sum + to - from, 0);
  return end > begin ? Math.min(1, own / (end - begin)) : 1;
}

/** The timeline in Chrome's trace event format, which Perfetto reads. */
export function chromeTrace(timeline: Timeline, study: string): string {
  const { spans, marks } = timeline;
  const begin = Math.min(...spans.begun_at);
  const micro = (time: number) => Math.round((time - begin) * 1e6);
  const names = laneNames(timeline);
  const tid = (slot: string) => names.indexOf(slot) + 1;
  const events = [
    ...names.map((name) => ({ ph: "M", name: "thread_name", pid: 1, tid: tid(name), args: { name } })),
    ...spans.slot.flatMap((_, index) =>
      stageSlots(timeline, index).map((slot) => ({
        ph: "X",
        name: `${spans.proof[index] ? "verification, " : ""}steps ${spans.start[index]}–${spans.end[index]}`,
        cat: spans.outcome[index],
        pid: 1,
        tid: tid(slot),
        ts: micro(spans.begun_at[index]!),
        dur: micro(spans.ended_at[index] ?? timeline.at) - micro(spans.begun_at[index]!),
        args: { node: spans.node[index], begun: spans.begun[index], ended: spans.ended[index] },
      })),
    ),
    ...marks.at.map((at, index) => ({
      ph: "i",
      name: `${marks.kind[index]} at step ${marks.step[index]}`,
      pid: 1,
      tid: tid(spans.slot[marks.span[index]!]!),
      ts: micro(at),
      s: "t",
    })),
  ];
  return JSON.stringify({ traceEvents: events, otherData: { study } });
}
