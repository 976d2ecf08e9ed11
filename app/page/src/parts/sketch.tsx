/** A sparkline of a hyper-parameter over the steps, with its schedule as text. */
import { isConstant, valueLevels } from "../layout/sparkline.ts";
import type { Schedule } from "../types.ts";

const [WIDTH, HEIGHT] = [160, 26];

export function Sketch({ schedule, marks }: { schedule: Schedule; marks: number[] }) {
  if (isConstant(schedule)) {
    return (
      <>
        <dt>{schedule.name}</dt>
        <dd class="constant">{schedule.text}</dd>
      </>
    );
  }
  const heights = valueLevels(schedule.values);
  const last = schedule.steps.at(-1) ?? 0;
  const x = (step: number) => 2 + (last ? (step / last) * (WIDTH - 4) : 0);
  const y = (share: number) => HEIGHT - 4 - share * (HEIGHT - 8);
  const points = schedule.steps.map((step, index) => `${x(step).toFixed(1)},${y(heights[index]!).toFixed(1)}`);
  const { text } = schedule;
  return (
    <>
      <dt>{schedule.name}</dt>
      <dd>
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} role="img" aria-label={`${schedule.name}: ${text}`}>
          {marks.map((mark) => (
            <line key={mark} x1={x(Math.min(mark - 1, last))} x2={x(Math.min(mark - 1, last))} y1="0" y2={HEIGHT} class="mark" />
          ))}
          <polyline points={points.join(" ")} />
        </svg>
        <span>{text}</span>
      </dd>
    </>
  );
}
