/** Paints the slots over time with and without sharing, above one time axis. */
import { count, duration, durationText } from "../format.ts";
import { timeTicks, type Size } from "../layout/scales.ts";
import type { Palette } from "../theme.ts";
import type { Blocks, SideBySide } from "../types.ts";
import { sharingColour } from "./slots_painting.ts";

const [LANES_PIXELS, MAX_LANE, MIN_LANE, TITLE, AXIS] = [96, 22, 2, 22, 34];

/** The two charts, from top to bottom. */
export function charts(both: SideBySide): { title: string; blocks: Blocks }[] {
  return [
    { title: "With sharing (measured)", blocks: both.shared },
    { title: "Without sharing (computed)", blocks: both.alone },
  ];
}

/** "241 steps, 0:45". */
export function blocksText(blocks: Blocks): string {
  return `${count(blocks.steps)} steps, ${duration(blocks.seconds)}`;
}

function laneHeight(slots: number): number {
  return Math.max(MIN_LANE, Math.min(MAX_LANE, LANES_PIXELS / slots));
}

export function sideBySideHeight(slots: number): number {
  return 2 * (TITLE + slots * laneHeight(slots) + 8) + AXIS;
}

export function paintSideBySide(context: CanvasRenderingContext2D, size: Size, ink: Palette, both: SideBySide): void {
  const most = Math.max(both.shared.seconds, both.alone.seconds) || 1;
  const x = (seconds: number) => (seconds / most) * size.width;
  const lanes = both.slots * laneHeight(both.slots);
  charts(both).forEach(({ title, blocks }, row) => {
    const top = row * (TITLE + lanes + 8);
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = ink.ink;
    context.font = "600 12px system-ui, sans-serif";
    context.fillText(title, 0, top + 10);
    const width = context.measureText(`${title}  `).width;
    context.font = "12px system-ui, sans-serif";
    context.fillText(blocksText(blocks), width, top + 10);
    paintBlocks(context, size, ink, blocks, x, top + TITLE, lanes, both.slots);
  });
  paintClock(context, size, ink, most, x);
}

function paintBlocks(context: CanvasRenderingContext2D, size: Size, ink: Palette, blocks: Blocks, x: (seconds: number) => number, top: number, height: number, slots: number): void {
  const lane = height / slots;
  context.fillStyle = ink.line;
  context.globalAlpha = 0.35;
  context.fillRect(0, top, size.width, height);
  context.globalAlpha = 1;
  blocks.slot.forEach((slot, index) => {
    const [from, to] = [x(blocks.begun[index]!), x(blocks.ended[index]!)];
    context.fillStyle = blocks.again[index] ? ink.warm : sharingColour(blocks.trials[index]!);
    context.fillRect(from, top + slot * lane + 0.5, Math.max(0.5, to - from - 0.5), Math.max(1, lane - 1));
  });
}

function paintClock(context: CanvasRenderingContext2D, size: Size, ink: Palette, most: number, x: (seconds: number) => number): void {
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = ink.soft;
  for (const at of timeTicks([0, most], size.width / 120)) {
    context.textAlign = at === 0 ? "left" : x(at) > size.width - 20 ? "right" : "center";
    context.fillText(durationText(at), x(at), size.height - AXIS + 10);
  }
  context.textAlign = "center";
  context.fillText("time (h:min:s)", size.width / 2, size.height - 7);
}
