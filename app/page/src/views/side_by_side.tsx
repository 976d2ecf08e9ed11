/** Slots over time with sharing (measured) and without sharing (computed for the same trials), on one time axis. */
import { studyPath, useAnswer } from "../data.ts";
import { count, duration } from "../format.ts";
import { timeTicks } from "../layout/scales.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { sharingColour } from "../parts/slots_painting.ts";
import { palette } from "../theme.ts";
import type { Blocks, SideBySide } from "../types.ts";
import type { ViewProps } from "./props.ts";

const [LANES_PIXELS, MAX_LANE, MIN_LANE] = [96, 22, 2];

export function SideBySideCard({ study, at }: ViewProps) {
  const { shared, known } = study.cost;
  const answer = useAnswer<SideBySide>(shared + known > 0 ? studyPath(study.study, "/side-by-side", at) : null);
  if (shared + known === 0) return null;
  return (
    <Panel title="With and without sharing" class="wide">
      <Loaded answer={answer}>{(both) => (both.alone.seconds > 0 ? <Charts both={both} /> : <p class="quiet">{both.text}</p>)}</Loaded>
    </Panel>
  );
}

function Charts({ both }: { both: SideBySide }) {
  const most = Math.max(both.shared.seconds, both.alone.seconds);
  const sharers = Math.max(1, ...both.shared.trials);
  return (
    <>
      <SlotsChart title="With sharing (measured)" blocks={both.shared} slots={both.slots} most={most} />
      <SlotsChart title="Without sharing (computed)" blocks={both.alone} slots={both.slots} most={most} />
      <div class="clock" aria-hidden="true">
        {timeTicks([0, most], 8).map((at) => (
          <span key={at} style={{ left: `${(100 * at) / most}%` }}>
            {duration(at)}
          </span>
        ))}
      </div>
      <p class="quiet key">
        <Swatch colour={sharingColour(1)} /> steps of one trial · <Swatch colour={sharingColour(sharers)} /> steps that {count(sharers)} trials share, trained once · <Swatch colour={palette.value.warm} /> steps that an earlier trial has trained.{" "}
        Computed for the same trials and decisions, {both.seconds_per_step.toPrecision(3)} s a step. The computation ignores waiting for results, so the real time without sharing would be at least as long.
      </p>
    </>
  );
}

function Swatch({ colour }: { colour: string }) {
  return (
    <svg width="12" height="12" aria-hidden="true">
      <rect width="12" height="12" fill={colour} />
    </svg>
  );
}

interface SlotsChartProps {
  title: string;
  blocks: Blocks;
  slots: number;
  most: number;
}

function SlotsChart({ title, blocks, slots, most }: SlotsChartProps) {
  const lane = Math.max(MIN_LANE, Math.min(MAX_LANE, LANES_PIXELS / slots));
  const place = (seconds: number) => `${((100 * seconds) / most).toFixed(3)}%`;
  const summary = `${count(blocks.steps)} steps, ${duration(blocks.seconds)}`;
  return (
    <figure class="half">
      <figcaption>
        <b>{title}</b>: {summary}
      </figcaption>
      <svg width="100%" height={slots * lane} role="img" aria-label={`${title}: ${summary}`}>
        <rect width="100%" height={slots * lane} fill={palette.value.line} opacity={0.35} />
        {blocks.slot.map((slot, index) => (
          <rect
            key={index}
            x={place(blocks.begun[index]!)}
            width={place(blocks.ended[index]! - blocks.begun[index]!)}
            y={slot * lane + 0.5}
            height={Math.max(1, lane - 1)}
            fill={blocks.again[index] ? palette.value.warm : sharingColour(blocks.trials[index]!)}
          />
        ))}
      </svg>
    </figure>
  );
}
