/** The comparison of studies: best results over time, cost, and shared search plans. */
import { useEffect, useMemo } from "preact/hooks";
import { studyPath, useAnswer, type Answer } from "../data.ts";
import { count, duration, number, share, footnoteSigns, deviationText } from "../format.ts";
import { parseStudyIds, planLetters } from "../layout/studies.ts";
import { Panel } from "../parts/panel.tsx";
import { Plot, type Line } from "../parts/plot.tsx";
import { Footnotes, State, Mark } from "../parts/states.tsx";
import { formatRoute, route, setQuery, studyLink } from "../route.ts";
import { palette, seriesColour } from "../theme.ts";
import { lastMoment, resultOf, type History, type Listed, type Study, type StudyPage } from "../types.ts";

export const MAX_COMPARED = 8;
/** How many studies to list, to find the search plans of the compared ones. */
const MAX_LISTED = 1000;
/** Line dashes, so that lines do not differ by colour alone. */
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [14, 5], [4, 4], [1, 5], [12, 3, 3, 3, 3, 3]];

interface ComparedStudy {
  name: string;
  study: Study | null;
  history: History | null;
  listed: Listed | undefined;
  error: string | undefined;
}

export function ComparedStudies() {
  const names = parseStudyIds(route.value.query["studies"], MAX_COMPARED);
  useEffect(() => void (document.title = "Studies compared · stagetree"), []);
  const back = <a href={formatRoute([], { studies: names.join(",") })}>select others</a>;
  if (names.length < 2) {
    return (
      <Panel title="Studies compared" class="wide" isPage aside={back}>
        <p class="quiet">Select two or more studies in the list.</p>
      </Panel>
    );
  }
  return <Comparison key={names.join()} names={names} />;
}

function Comparison({ names }: { names: string[] }) {
  const { data: page } = useAnswer<StudyPage>(`studies?limit=${MAX_LISTED}`);
  const studies = names.map((name) => useAnswer<Study>(studyPath(name, "", null, { trials: "false" }))); // the same number of hooks in each render, by the key
  const histories = names.map((name) => useAnswer<History>(studyPath(name, "/history", null)));
  const all = names.map<ComparedStudy>((name, index) => ({
    name,
    study: studies[index]!.data,
    history: histories[index]!.data,
    listed: page?.items.find((item) => item.study === name),
    error: (studies[index] as Answer<Study>).error?.message,
  }));
  const metrics = [...new Set(all.flatMap(({ study }) => (study ? [study.metric] : [])))];
  return (
    <>
      <Panel title={`${names.length} studies`} class="wide" isPage aside={<a href={formatRoute([], { studies: names.join(",") })}>select others</a>}>
        <Facts all={all} />
      </Panel>
      {metrics.map((metric) => (
        <Curves key={metric} metric={metric} all={all} />
      ))}
    </>
  );
}

function Facts({ all }: { all: ComparedStudy[] }) {
  const plans = planLetters(all.map(({ name, listed }) => listed?.plan ?? name));
  const signs = footnoteSigns(all.map(({ study }) => study?.best?.exactness));
  return (
    <>
      <div class="scroll">
        <table class="list">
          <thead>
            <tr>
              <th>Study</th>
              <th>State</th>
              <th>Tuner</th>
              <th class="n">Best</th>
              <th class="n">Trials</th>
              <th class="n">Steps run</th>
              <th class="n">Reused</th>
              <th class="n">Saved by sharing</th>
              <th class="n">by early stopping</th>
              <th class="n">Slot time</th>
              <th>Plan</th>
            </tr>
          </thead>
          <tbody>
            {all.map((each, index) => (
              <Row key={each.name} {...each} index={index} plan={plans[index]!} signs={signs} />
            ))}
          </tbody>
        </table>
      </div>
      <Footnotes signs={signs} />
      <p class="quiet">
        {plans.some(Boolean) ? "Studies with the same letter share a search plan: steps that one has trained, the others reuse. " : "No two of these studies share a search plan: trainer, arguments, data or seed differ. "}
        “Reused” counts steps that another study trained.
      </p>
    </>
  );
}

interface RowProps extends ComparedStudy {
  index: number;
  plan: string;
  signs: Map<string, string>;
}

function Row({ name, study, error, index, plan, signs }: RowProps) {
  const best = study?.best;
  return (
    <tr>
      <th scope="row">
        <LineSample index={index} /> <a href={studyLink(name)}>{name}</a>
        {error && <p class="trouble">{error}</p>}
      </th>
      <td>{study && <State state={study.state} />}</td>
      <td>{study?.tuner ?? "…"}</td>
      <td class="n">
        {best ? <a href={studyLink(name, ["trials", String(best.trial)])}>{number(best.value, 6)}</a> : "–"}
        {best && <Mark text={best.exactness} signs={signs} />}
        {study && (
          <p class="quiet">
            {best && deviationText(resultOf(study, best))} {study.metric} {study.mode === "min" ? "↓" : "↑"}
          </p>
        )}
      </td>
      <td class="n">{study ? count(study.progress.trials.done) : "…"}</td>
      <td class="n">{study ? count(study.cost.run) : "…"}</td>
      <td class="n">{study ? count(study.cost.known) : "…"}</td>
      <td class={`n ${study?.cost.saved_by_sharing ? "strong" : "quiet"}`}>{study ? share(study.cost.saved_by_sharing) : "…"}</td>
      <td class={`n ${study?.cost.saved_by_stopping ? "strong" : "quiet"}`}>{study ? share(study.cost.saved_by_stopping) : "…"}</td>
      <td class="n">{study ? duration(study.gpu_seconds) : "…"}</td>
      <td>{plan || "own"}</td>
    </tr>
  );
}

function LineSample({ index }: { index: number }) {
  return (
    <svg width="28" height="10" aria-hidden="true">
      <path d="M0 5H28" stroke={seriesColour(index)} stroke-width="2.5" stroke-dasharray={DASHES[index]!.join(" ")} />
    </svg>
  );
}

function Curves({ metric, all }: { metric: string; all: ComparedStudy[] }) {
  const by = route.value.query["by"] === "time" ? "time" : "slots";
  const lines = useMemo(() => all.flatMap((each, index) => bestLine(each, index, metric, by)), [all.map(({ history }) => history?.position).join(), metric, by, palette.value]);
  const aside = (
    <span class="choice" role="group" aria-label="Against">
      {[
        ["slots", "slot time"],
        ["time", "time"],
      ].map(([value, text]) => (
        <button key={value} aria-pressed={by === value} onClick={() => setQuery({ by: value === "slots" ? "" : value! })}>
          {text}
        </button>
      ))}
    </span>
  );
  return (
    <Panel title={`Best ${metric} so far`} class="wide" aside={aside}>
      {lines.length > 0 ? <Plot label={`Best ${metric} of ${lines.length} studies against ${by}`} height={300} lines={lines} xLabel={by === "slots" ? "slot time (h:min:s)" : "time since submission (h:min:s)"} yLabel={metric} file={`studies-${metric}-by-${by}`} isTime /> : <p class="quiet">No result yet.</p>}
    </Panel>
  );
}

function bestLine({ name, study, history }: ComparedStudy, index: number, metric: string, by: string): Line[] {
  if (!study || !history || study.metric !== metric || history.best.length === 0) return [];
  const x = history.best.map((each) => (by === "slots" ? each.slot_seconds : each.at - study.submitted_at));
  const y = history.best.map((each) => each.value);
  const end = by === "slots" ? study.gpu_seconds : lastMoment(study, history) - study.submitted_at;
  return [{ label: name, colour: seriesColour(index), width: 2, dash: DASHES[index]!, isStepped: true, x: [...x, Math.max(end, x.at(-1)!)], y: [...y, y.at(-1)!] }];
}
