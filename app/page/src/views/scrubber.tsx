/** Time travel: a slider over the event log. All views show the study as it was after the selected event. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, timeText } from "../format.ts";
import { Canvas } from "../parts/canvas.tsx";
import { moment, route, setQuery, studyLink } from "../route.ts";
import type { Palette } from "../theme.ts";
import type { History } from "../types.ts";

const SETTLE_MILLISECONDS = 120;

export function Scrubber({ history }: { history: History }) {
  const head = history.position;
  const [dragged, setDragged] = useState<number | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const at = dragged ?? moment.value ?? head;
  const isPast = moment.value !== null || dragged !== null;
  const go = (position: number) => {
    const next = Math.max(1, Math.min(head, position));
    setDragged(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      setQuery({ at: String(next) });
      setDragged(null);
    }, SETTLE_MILLISECONDS);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const [isOpen, setOpen] = useState(false);
  const positions = useMemo(() => [...new Set(history.decisions.position)].sort((a, b) => a - b), [history]);
  const before = positions.filter((each) => each < at).at(-1) ?? 1;
  const after = positions.find((each) => each > at) ?? head;
  if (!isPast && !isOpen) {
    return (
      <section class="scrubber closed" aria-label="Moment">
        <button class="plain" onClick={() => setOpen(true)} title="Show the study as it was after an earlier event">
          Time travel
        </button>
        <output>now, event {count(head)}</output>
      </section>
    );
  }
  return (
    <section class={`scrubber ${isPast ? "past" : ""}`} aria-label="Moment">
      <div class="buttons">
        <button onClick={() => go(before)} title="previous decision" aria-label="Previous decision">
          ◂
        </button>
        <button onClick={() => go(after)} title="next decision" aria-label="Next decision">
          ▸
        </button>
        <button onClick={() => (setOpen(false), setQuery({ at: "" }))}>Now</button>
      </div>
      <div class="track">
        <DecisionMarks history={history} head={head} />
        <input
          type="range"
          min={1}
          max={head}
          value={at}
          aria-label="Event after which the study is shown"
          aria-valuetext={`event ${at} of ${head}`}
          onInput={(event) => go(Number(event.currentTarget.value))}
        />
      </div>
      <output>
        {isPast ? (
          <>
            <b>event {count(at)}</b> of {count(head)} · {timeText(eventTime(history, at))} · read only ·{" "}
            <a href={studyLink(route.value.path[1]!, ["moments"], { a: String(at), at: "" })}>compare with now</a>
          </>
        ) : (
          <>now, event {count(head)}</>
        )}
      </output>
    </section>
  );
}

/** The approximate time of an event, interpolated between known times. */
function eventTime(history: History, position: number): number {
  const times = history.times;
  const after = times.findIndex(([each]) => each! >= position);
  if (after <= 0) return times[Math.max(0, after)]?.[1] ?? history.at;
  const [[p0, t0], [p1, t1]] = [times[after - 1] as [number, number], times[after] as [number, number]];
  return t0 + ((t1 - t0) * (position - p0)) / Math.max(1, p1 - p0);
}

function DecisionMarks({ history, head }: { history: History; head: number }) {
  const draw = useMemo(
    () => (context: CanvasRenderingContext2D, { width, height }: { width: number; height: number }, colours: Palette) => {
      const { position, kind } = history.decisions;
      const drawn = new Set<string>();
      position.forEach((each, index) => {
        const x = Math.round(8 + ((each - 1) / Math.max(1, head - 1)) * (width - 16));
        const isEnd = kind[index] === "stop" || kind[index]!.startsWith("cancel");
        const key = `${x} ${isEnd}`;
        if (drawn.has(key)) return;
        drawn.add(key);
        context.fillStyle = kind[index] === "promote" ? colours.accent : isEnd ? colours.bad : colours.faint;
        context.fillRect(x, isEnd ? height / 2 : 0, 1, height / 2);
      });
    },
    [history, head],
  );
  return <Canvas height={10} label="Decisions: promotions above, endings below" draw={draw} />;
}
