/** The best result so far, against time or slot time. */
import { useMemo } from "preact/hooks";
import { studyPath, useAnswer } from "../data.ts";
import { number, plural } from "../format.ts";
import { spansOrdersOfMagnitude } from "../layout/scales.ts";
import { Loaded, Panel } from "../parts/panel.tsx";
import { Plot, type Line } from "../parts/plot.tsx";
import { route, setQuery, studyLink } from "../route.ts";
import { palette } from "../theme.ts";
import { lastMoment, type History, type Study } from "../types.ts";
import type { ViewProps } from "./props.ts";

export function BestOverTime({ study, at }: ViewProps) {
  const answer = useAnswer<History>(studyPath(study.study, "/history", at));
  const by = route.value.query["by"] === "slots" ? "slots" : "time";
  const aside = (
    <span class="choice" role="group" aria-label="Against">
      {[
        ["time", "time"],
        ["slots", "slot time"],
      ].map(([value, text]) => (
        <button key={value} aria-pressed={by === value} onClick={() => setQuery({ by: value === "time" ? "" : value! })}>
          {text}
        </button>
      ))}
    </span>
  );
  return (
    <Panel title="Best measurement so far" aside={aside}>
      <Loaded answer={answer}>{(history) => <BestPlot study={study} history={history} by={by} />}</Loaded>
    </Panel>
  );
}

function BestPlot({ study, history, by }: { study: Study; history: History; by: string }) {
  const lines = useMemo<Line[]>(() => {
    const end = by === "slots" ? study.gpu_seconds : lastMoment(study, history) - study.submitted_at;
    const x = history.best.map((each) => (by === "slots" ? each.slot_seconds : each.at - study.submitted_at));
    const y = history.best.map((each) => each.value);
    if (y.length) [x.push(Math.max(end, x.at(-1)!)), y.push(y.at(-1)!)];
    return [{ label: "best", colour: palette.value.accent, width: 2, isStepped: true, x, y }];
  }, [history, by, study.gpu_seconds, palette.value]);
  if (history.best.length === 0) return <p class="quiet">No result yet.</p>;
  const last = history.best.at(-1)!;
  return (
    <>
      <Plot label={`Best ${study.metric} against ${by}`} height={180} lines={lines} xLabel={by === "slots" ? "slot time (h:min:s)" : "time since submission (h:min:s)"} yLabel={study.metric} isLogY={spansOrdersOfMagnitude(history.best.map((each) => each.value))} file={`${study.study}-best-by-${by}`} isTime />
      <p class="quiet">
        {plural(history.best.length, "improvement")}; the last, {number(last.value, 6)}, by trial {last.trial} at step {last.step},{" "}
        <a href={studyLink(study.study, ["events"], { event: String(last.position) })}>event {last.position}</a>.
        {study.value === "last" && " The best trial is chosen by the last measurement of each."}
      </p>
    </>
  );
}
