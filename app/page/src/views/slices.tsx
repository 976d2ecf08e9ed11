/** A scatter plot of the result against each hyper-parameter. */
import { useCallback } from "preact/hooks";
import type { Axis } from "../layout/parallel.ts";
import { Canvas, shortenText, type Size } from "../parts/canvas.tsx";
import type { Palette } from "../theme.ts";

export function Slices({ axes }: { axes: Axis[] }) {
  const metric = axes.at(-1)!;
  return (
    <div class="slices">
      {axes.slice(0, -1).map((axis) => (
        <Slice key={axis.name} axis={axis} metric={metric} />
      ))}
    </div>
  );
}

function Slice({ axis, metric }: { axis: Axis; metric: Axis }) {
  const draw = useCallback(
    (context: CanvasRenderingContext2D, { width, height }: Size, ink: Palette) => {
      const isFew = new Set(axis.positions).size <= 6;
      context.fillStyle = ink.accent;
      context.globalAlpha = axis.positions.length > 500 ? 0.25 : 0.6;
      axis.positions.forEach((place, row) => {
        const result = metric.positions[row]!;
        if (Number.isNaN(place) || Number.isNaN(result)) return;
        const aside = isFew ? (((row * 7919) % 13) - 6) * 1.5 : 0; // spreads dots of equal values
        context.beginPath();
        context.arc(14 + place * (width - 28) + aside, 8 + (1 - result) * (height - 30), 2.2, 0, 7);
        context.fill();
      });
      context.globalAlpha = 1;
      context.fillStyle = ink.soft;
      for (const tick of axis.ticks.length > 3 ? [axis.ticks[0]!, axis.ticks.at(-1)!] : axis.ticks) {
        context.textAlign = tick.place < 0.2 ? "left" : tick.place > 0.8 ? "right" : "center";
        context.fillText(shortenText(context, tick.text, width / 2 - 6), 6 + tick.place * (width - 12), height - 4);
      }
    },
    [axis, metric],
  );
  return (
    <figure>
      <figcaption>{axis.title}</figcaption>
      <Canvas height={130} draw={draw} label={`${metric.title} against ${axis.title}`} />
    </figure>
  );
}
