/** Some studies beside each other: how soon each came to its best, what it cost, and what they share. */
import { useEffect, useMemo } from "preact/hooks";
import { about, useAnswer, type Answer } from "../data.ts";
import { count, duration, number, share, signsOf, spread } from "../format.ts";
import { chosenStudies, sharedPlans } from "../layout/studies.ts";
import { Panel } from "../parts/panel.tsx";
import { Plot, type Line } from "../parts/plot.tsx";
import { Footnotes, State, Mark } from "../parts/states.tsx";
import { formatRoute, route, setQuery, studyLink } from "../route.ts";
import { palette, series } from "../theme.ts";
import { resultOf, type History, type Listed, type Study, type StudyPage } from "../types.ts";

export const MOST_COMPARED = 8;
/** Studies of a list that is asked for to find their plans. */
const LISTED = 1000;
/** Lines are told apart without colours, too. */
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [14, 5], [4, 4], [1, 5], [12, 3, 3, 3, 3, 3]];

interface Compared {
  name: string;
  study: Study | null;
  history: History | null;
  listed: Listed | undefined;
  error: string | undefined;
}

export function ComparedStudies() {
  const names = chosenStudies(route.value.query["studies"], MOST_COMPARED);
  useEffect(() => void (document.title = "Studies compared · stagetree"), []);
  const back = <a href={formatRoute([], { studies: names.join(",") })}>choose others</a>;
  if (names.length < 2) {
    return (
      <Panel title="Studies compared" class="wide" aside={back}>
        <p class="quiet">Choose two studies or more in the list.</p>
      </Panel>
    );
  }
  return <Beside key={names.join()} names={names} />;
}

function Beside({ names }: { names: string[] }) {
  const { data: page } = useAnswer<StudyPage>(`studies?limit=${LISTED}`);
  const studies = names.map((name) => useAnswer<Study>(about(name, "", null, { trials: "false" }))); // as many in each call
  const histories = names.map((name) => useAnswer<History>(about(name, "/history", null)));
  const all = names.map<Compared>((name, index) => ({
    name,
    study: studies[index]!.data,
    history: histories[index]!.data,
    listed: page?.items.find((item) => item.study === name),
    error: (studies[index] as Answer<Study>).error?.message,
  }));
  const metrics = [...new Set(all.flatMap(({ study }) => (study ? [study.metric] : [])))];
  return (
    <>
      <Panel title={`${names.length} studies`} class="wide" aside={<a href={formatRoute([], { studies: names.join(",") })}>choose others</a>}>
        <Facts all={all} />
      </Panel>
      {metrics.map((metric) => (
        <Curves key={metric} metric={metric} all={all} />
      ))}
    </>
  );
}

function Facts({ all }: { all: Compared[] }) {
  const plans = sharedPlans(all.map(({ name, listed }) => listed?.plan ?? name));
  const signs = signsOf(all.map(({ study }) => study?.best?.exactness));
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
        {plans.some(Boolean) ? "Studies with the same letter share a search plan: what one has trained, the others reuse. " : "No two of them share a search plan: trainer, arguments, data or seed differ. "}
        “Reused” are steps that another study had trained.
      </p>
    </>
  );
}

interface RowProps extends Compared {
  index: number;
  plan: string;
  signs: Map<string, string>;
}

function Row({ name, study, error, index, plan, signs }: RowProps) {
  const best = study?.best;
  return (
    <tr>
      <th scope="row">
        <Sample index={index} /> <a href={studyLink(name)}>{name}</a>
        {error && <p class="trouble">{error}</p>}
      </th>
      <td>{study && <State state={study.state} />}</td>
      <td>{study?.tuner ?? "…"}</td>
      <td class="n">
        {best ? <a href={studyLink(name, ["trials", String(best.trial)])}>{number(best.value, 6)}</a> : "–"}
        {best && <Mark text={best.exactness} signs={signs} />}
        {study && (
          <p class="quiet">
            {best && spread(resultOf(study, best))} {study.metric} {study.mode === "min" ? "↓" : "↑"}
          </p>
        )}
      </td>
      <td class="n">{study ? count(study.progress.trials.done) : "…"}</td>
      <td class="n">{study ? count(study.cost.run) : "…"}</td>
      <td class="n">{study ? count(study.cost.known) : "…"}</td>
      <td class="n strong">{study ? share(study.cost.saved_by_sharing) : "…"}</td>
      <td class="n strong">{study ? share(study.cost.saved_by_stopping) : "…"}</td>
      <td class="n">{study ? duration(study.gpu_seconds) : "…"}</td>
      <td>{plan || "its own"}</td>
    </tr>
  );
}

/** How a study's line looks. */
function Sample({ index }: { index: number }) {
  return (
    <svg width="28" height="10" aria-hidden="true">
      <path d="M0 5H28" stroke={series(index)} stroke-width="2.5" stroke-dasharray={DASHES[index]!.join(" ")} />
    </svg>
  );
}

function Curves({ metric, all }: { metric: string; all: Compared[] }) {
  const by = route.value.query["by"] === "time" ? "time" : "slots";
  const lines = useMemo(() => all.flatMap((each, index) => lineOf(each, index, metric, by)), [all.map(({ history }) => history?.position).join(), metric, by, palette.value]);
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
      {lines.length > 0 ? <Plot label={`Best ${metric} of ${lines.length} studies against ${by}`} height={300} lines={lines} xLabel={by === "slots" ? "slot time" : "time since submission"} isTime /> : <p class="quiet">No result yet.</p>}
    </Panel>
  );
}

function lineOf({ name, study, history }: Compared, index: number, metric: string, by: string): Line[] {
  if (!study || !history || study.metric !== metric || history.best.length === 0) return [];
  const x = history.best.map((each) => (by === "slots" ? each.slot_seconds : each.at - study.submitted_at));
  const y = history.best.map((each) => each.value);
  const end = by === "slots" ? study.gpu_seconds : history.at - study.submitted_at;
  return [{ label: name, colour: series(index), width: 2, dash: DASHES[index]!, isStepped: true, x: [...x, Math.max(end, x.at(-1)!)], y: [...y, y.at(-1)!] }];
}
