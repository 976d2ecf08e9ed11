/** Slots over time with sharing (measured) and without sharing (computed for the same trials), on one time axis. */
import { useCallback } from "preact/hooks";
import { studyPath, useAnswer } from "../data.ts";
import { count } from "../format.ts";
import type { Size } from "../layout/scales.ts";
import { Canvas } from "../parts/canvas.tsx";
import { Loaded, Panel } from "../parts/panel.tsx";
import { blocksText, charts, paintSideBySide, sideBySideHeight } from "../parts/side_by_side_painting.ts";
import { sharingColour } from "../parts/slots_painting.ts";
import { palette, type Palette } from "../theme.ts";
import type { SideBySide } from "../types.ts";
import type { ViewProps } from "./props.ts";

export function SideBySideCard({ study, at }: ViewProps) {
  const { shared, known } = study.cost;
  const answer = useAnswer<SideBySide>(shared + known > 0 ? studyPath(study.study, "/side-by-side", at) : null);
  if (shared + known === 0) return null;
  return (
    <Panel title="With and without sharing" class="wide">
      <Loaded answer={answer}>{(both) => (both.alone.seconds > 0 ? <Charts study={study.study} both={both} /> : <p class="quiet">{both.text}</p>)}</Loaded>
    </Panel>
  );
}

function Charts({ study, both }: { study: string; both: SideBySide }) {
  const sharers = Math.max(1, ...both.shared.trials);
  const draw = useCallback((context: CanvasRenderingContext2D, size: Size, ink: Palette) => paintSideBySide(context, size, ink, both), [both]);
  const label = charts(both).map(({ title, blocks }) => `${title}: ${blocksText(blocks)}`).join(". ");
  return (
    <>
      <Canvas height={sideBySideHeight(both.slots)} draw={draw} label={label} data={{ name: `${study}-with-and-without-sharing`, rows: () => blockRows(both) }} />
      <p class="quiet key">
        <Swatch colour={sharingColour(1)} /> steps of one trial · <Swatch colour={sharingColour(sharers)} /> steps that {count(sharers)} trials share, trained once · <Swatch colour={palette.value.warm} /> steps that an earlier trial has trained.{" "}
        Computed for the same trials and decisions, {both.seconds_per_step.toPrecision(3)} s a step.{" "}
        {both.alone.seconds > both.shared.seconds
          ? "The computation ignores waiting for results, so the real time without sharing would be at least as long."
          : "Meanwhile slots waited or did other work: compare the steps, not the times."}
      </p>
    </>
  );
}

function blockRows(both: SideBySide): (string | number | boolean)[][] {
  const rows = charts(both).flatMap(({ title, blocks }) => blocks.slot.map((slot, index) => [title, slot, blocks.begun[index]!, blocks.ended[index]!, blocks.trials[index]!, blocks.again[index]!]));
  return [["chart", "slot", "begun after seconds", "ended after seconds", "trials", "trained before"], ...rows];
}

function Swatch({ colour }: { colour: string }) {
  return (
    <svg width="12" height="12" aria-hidden="true">
      <rect width="12" height="12" fill={colour} />
    </svg>
  );
}
